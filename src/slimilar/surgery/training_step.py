"""Check that a smaller model can be trained on: one step in training mode."""

from __future__ import annotations

import torch
from torch import nn

from slimilar.errors import VerificationError
from slimilar.utils.modules import copy_with
from slimilar.utils.pytree import Example, arguments, tensors_in


def check_training_step(model: nn.Module, small: nn.Module, inputs: Example) -> None:
    """Raise if a step in training mode fails on the smaller model, but not on the original.

    Both are copied first, and the random number generators are left as they were.
    """
    error = _step_error(small, inputs)
    if error is not None and _step_error(model, inputs) is None:
        raise VerificationError(
            "the smaller model must take a step of training as the original does, but in training mode it raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _step_error(model: nn.Module, inputs: Example) -> Exception | None:
    """Return what a forward and backward pass in training mode raises, None if nothing."""
    args, kwargs = arguments(inputs)
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            found = tensors_in(copy_with(model, {}).train()(*args, **kwargs))
            losses = [t.double().mean() for t in found if t.is_floating_point() and t.requires_grad]
            if losses:
                torch.stack(losses).sum().backward()
    except Exception as error:  # whatever the user's code raises
        return error
    return None
