"""Check that a smaller model can be trained on: one step in training mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from slimilar.errors import VerificationError
from slimilar.surgery.convolutions import without_convolving
from slimilar.surgery.other_inputs import rebatched
from slimilar.utils.modules import eval_view
from slimilar.utils.pytree import Example, arguments, map_tensors, tensors_in


def check_training_step(model: nn.Module, small: nn.Module, inputs: Example) -> None:
    """Raise if a step in training mode fails on the smaller model, but not on the original.

    It has two entries, as batch norms need them, unless the original takes the example's number only. At first it does
    not convolve: what may fail at another width are code and shapes. Parameters, statistics and the random number
    generators are left as they were.
    """
    for batch in (_of_two(inputs), inputs):
        error = _step_error(small, batch, without_convolving) and _step_error(small, batch)
        if error is None:
            return
        if _step_error(model, batch) is None:
            raise VerificationError(
                "the smaller model must take a step of training as the original does, but in training mode it raised "
                f"{type(error).__name__}: {error}"
            ) from error


def _of_two(inputs: Example) -> Example:
    single = any(len(t) == 1 for t in tensors_in(inputs) if t.ndim)
    return rebatched(inputs, 2) if single else inputs


def _step_error(
    model: nn.Module,
    inputs: Example,
    changed: Callable[[nn.Module], AbstractContextManager[object]] = nullcontext,
) -> Exception | None:
    """Return what a forward and backward pass in training mode raises, None if nothing.

    The gradient is that of the input: it passes all layers, and those of the weights would only take memory.
    """
    args, kwargs = map_tensors(_differentiable, arguments(inputs))
    try:
        copy = eval_view(model).requires_grad_(False).train()
        with torch.random.fork_rng(), torch.enable_grad(), warnings.catch_warnings(), changed(copy):
            warnings.simplefilter("ignore")  # of the user's code, which runs on our behalf
            found = tensors_in(copy(*args, **kwargs))
            losses = [t.double().mean() for t in found if t.is_floating_point() and t.requires_grad]
            if losses:
                torch.stack(losses).sum().backward()
    except Exception as error:  # whatever the user's code raises
        return error
    return None


def _differentiable(t: Tensor) -> Tensor:
    """Return a tensor with a gradient that the model may write to."""
    return t.clone().requires_grad_() * 1 if t.is_floating_point() else t
