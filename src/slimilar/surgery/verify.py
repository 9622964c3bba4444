"""Prove a rewrite: the smaller model must equal the original with the removed channels masked.

The original runs on random input with its own weights, shared and not copied; wherever an operator reads channels,
those that were removed are set to zero on the way in. Images are made small first: what is compared are channels,
and these go the same way at any height and width as long as the same operators run, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from slimilar.errors import VerificationError
from slimilar.graph.groups import Grouping
from slimilar.graph.records import Trace
from slimilar.surgery.convolutions import each_image_once
from slimilar.surgery.masking import Masked, Masks, masks_of, recurrent
from slimilar.surgery.other_inputs import (
    batch_name,
    batch_size,
    combined_input,
    fresh,
    image_name,
    other_batches,
    other_inputs,
    random_like,
    rebatched,
    with_small_images,
)
from slimilar.surgery.rewrite import Kept
from slimilar.surgery.training_step import check_training_step
from slimilar.utils.modules import copy_with, eval_view, named_modules, named_parameters
from slimilar.utils.precision import MinimumPrecision
from slimilar.utils.pytree import Example, arguments, tensors_in

_EXAMPLE = "the example's shape"
_EQUAL = 1e-4  # of the largest value: a larger difference in float32 is decided in float64


def verify(
    model: nn.Module, small: nn.Module, example: Example, trace: Trace, grouping: Grouping, kept: Kept
) -> float:
    """Compare the smaller model with the masked original on random inputs; return the largest relative error.

    Beside the example's shape, these have other batch and image sizes where the model takes them, and the smaller
    model must take a step of training if the original does. A difference in float32 is decided in float64. Models on
    the meta device have no numbers to compare.
    """
    parameters = named_parameters(model).values()
    if any(t.is_meta for t in parameters):
        return 0.0
    masks = masks_of(model, trace, grouping, kept)
    wide = any(t.dtype in (torch.float16, torch.bfloat16) for t in parameters)
    errors = _errors(model, small, example, trace, masks, torch.float32 if wide else None)
    if not all(error < _EQUAL for error in errors.values()):
        errors = _errors(model, small, example, trace, masks, torch.float64)
        for name, error in errors.items():
            if not error < 1e-6:
                raise VerificationError(
                    "the smaller model must equal the original with the removed channels masked, but their outputs "
                    f"differ by {error:.2g} of the largest value on {name}"
                )
    return max(errors.values())


class _Models:
    """The original, masked, and the smaller model."""

    def __init__(self, original: nn.Module, small: nn.Module, trace: Trace, masks: Masks) -> None:
        self.original, self.small, self._trace, self._masks = original, small, trace, masks

    def expected(self, inputs: Example) -> tuple[list[Tensor], Masked]:
        """Return the outputs of the masked original, and what has run."""
        args, kwargs = arguments(inputs)
        model, run = self.original, Masked(self._masks)
        as_traced = _as_traced(model, self._trace, self._masks)
        with torch.no_grad(), as_traced, run.inside(recurrent(model)), run:
            found = model(*args, **kwargs)
        return list(tensors_in(found)), run

    def runs_as_traced(self, run: Masked) -> bool:
        """Tell whether the operators of the trace have run, and no others."""
        return run.names == [op.name for op in self._trace.ops]

    def error(self, expected: list[Tensor], inputs: Example) -> float:
        """Return the relative error of the smaller model."""
        return difference(expected, plain_outputs(self.small, inputs))


def _errors(
    model: nn.Module,
    small: nn.Module,
    example: Example,
    trace: Trace,
    masks: Masks,
    dtype: torch.dtype | None,
) -> dict[str, float]:
    """Return the relative error on every input that the model takes as it takes the example, by the input's name."""
    original = eval_view(model)
    if dtype is not None:
        original, small = copy_with(original, {}).to(dtype), copy_with(small, {}).to(dtype)
    models = _Models(original, small, trace, masks)
    with nullcontext() if dtype is None else MinimumPrecision(dtype):
        return _errors_on_all(models, example, dtype)


def _errors_on_all(models: _Models, example: Example, dtype: torch.dtype | None) -> dict[str, float]:
    inputs = random_like(example, dtype, next(iter(models.small.parameters())).device)
    base = next(with_small_images(inputs), inputs)
    errors = _errors_in_one_batch(models, base, image_name(base) if base is not inputs else _EXAMPLE)
    if not errors:
        base, errors = _first_error(models, inputs)
    shrunk = base is not inputs
    if not shrunk:
        errors |= _combined_errors(models, base)
    for name, other in other_inputs(base, other_images=not shrunk):
        if name in errors:
            continue
        try:
            error = _error_at(models, fresh(other), by_image=True)
        except Exception as raised:
            raise VerificationError(f"on {name} the smaller model raised: {raised}") from raised
        if error is not None:
            errors[name] = error
    check_training_step(models.original, models.small, base)
    return errors


def _errors_in_one_batch(models: _Models, base: Example, name: str) -> dict[str, float]:
    """Return the errors on batches of all sizes from one run of the original; nothing unless all is as it should be.

    It runs on the largest batch. The smaller model runs on the first images of that, as many as each size says.
    """
    names = {batch_size(base): name} | {size: batch_name(size) for size in other_batches(base)}
    many = fresh(rebatched(base, max(names)))
    try:
        expected, run = models.expected(many)
        if not models.runs_as_traced(run) or not _follow_batch(expected, many):
            return {}
        small_images = name != _EXAMPLE  # activations of larger ones would take much memory
        with each_image_once(models.small) if small_images else nullcontext():
            errors = {
                names[size]: models.error(
                    [t[:size] if t.ndim else t for t in expected], rebatched(many, size)
                )
                for size in sorted(names, reverse=True)
            }
    except Exception:  # whatever the user's code raises for one of the sizes; each is tried alone then
        return {}
    return errors if all(error < _EQUAL for error in errors.values()) else {}


def _first_error(models: _Models, inputs: Example) -> tuple[Example, dict[str, float]]:
    """Return an input with images as small as the model takes them, and the error on it; else the input itself."""
    for base in with_small_images(inputs):
        error = _error_at(models, base)
        if error is not None:
            return base, {image_name(base): error}
    return inputs, {_EXAMPLE: _error_on_example(models, inputs)}


def _combined_errors(models: _Models, inputs: Example) -> dict[str, float]:
    """Return the error on a combined input under the names that it covers; nothing where these are to be told apart."""
    combined = combined_input(inputs)
    if combined is None:
        return {}
    names, larger = combined
    try:
        error = _error_at(models, fresh(larger), by_image=True)
    except Exception:  # raised again, and named, on one of the inputs that are covered
        return {}
    return dict.fromkeys(names, error) if error is not None and error < _EQUAL else {}


def _error_at(models: _Models, inputs: Example, by_image: bool = False) -> float | None:
    """Return the relative error, None if the original does not take such inputs.

    So it is if it raises, runs other operators, or, where it should return something for every image, returns another
    number of entries: code in which the batch size is written mixes images and channels.
    """
    try:
        expected, run = models.expected(inputs)
    except Exception:  # the user's code may raise anything for a size that it was not made for
        return None
    if not models.runs_as_traced(run) or (by_image and not _follow_batch(expected, inputs)):
        return None
    return models.error(expected, inputs)


def _follow_batch(outputs: list[Tensor], inputs: Example) -> bool:
    batch = next((len(t) for t in tensors_in(inputs) if t.ndim), None)
    return all(len(t) == batch for t in outputs if t.ndim)


def _error_on_example(models: _Models, inputs: Example) -> float:
    expected, run = models.expected(inputs)
    if not run.complete:
        raise VerificationError(
            "the model must run the operators that its trace has seen, but some of those that read channels "
            "did not run on random input"
        )
    return models.error(expected, inputs)


_SWITCHING = Lock()  # torch has one switch for all threads: who finds it off would leave it off


@contextmanager
def _as_traced(model: nn.Module, trace: Trace, masks: Masks) -> Iterator[None]:
    """Keep torch from running attention, many operators on the meta device, as one, whose inside cannot be masked."""
    counted = trace.meta and any(kind == "aten.bmm" for kind, _ in masks)  # attention has two of these inside
    if not counted and not any(isinstance(m, nn.MultiheadAttention) for m in named_modules(model).values()):
        yield
        return
    with _SWITCHING:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH) if counted else nullcontext():
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def plain_outputs(small: nn.Module, inputs: Example) -> list[Tensor]:
    """Return the floating-point outputs of a model of ours in eval mode."""
    args, kwargs = arguments(inputs)
    with torch.no_grad(), _in_eval_mode(small):
        return list(tensors_in(small(*args, **kwargs)))


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model of ours to eval mode and back, module by module."""
    training = [m for m in named_modules(model).values() if m.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def difference(expected: list[Tensor], given: list[Tensor]) -> float:
    """Return the largest difference between outputs, relative to the largest value of each."""
    if not expected:
        raise VerificationError("the model must return tensors that can be compared, got none")
    if [t.shape for t in expected] != [t.shape for t in given]:
        return float("inf")
    return max(_relative(a, b) for a, b in zip(expected, given, strict=True))


def _relative(expected: Tensor, given: Tensor) -> float:
    """Return the largest difference by the largest value; of whole numbers, whether there is any difference."""
    if expected.numel() == 0:
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(expected, given) else float("inf")
    scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((expected - given).abs().max() / scale)
