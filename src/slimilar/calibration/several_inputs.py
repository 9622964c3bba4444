"""Models with several inputs: the inputs of a sample as one row of numbers.

All that is done with calibration images is done to rows: they are counted, drawn, held out and put into batches. So the
inputs of a sample are laid side by side in one row, and taken apart again where the model or its program is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slimilar.errors import InvalidInput
from slimilar.utils.pytree import Example, arguments, map_tensors, tensors_in

Shapes = Sequence[tuple[int, ...]]  # of one sample, input by input


def input_shapes(example: Example) -> list[tuple[int, ...]]:
    """Return the shape of one sample of every input.

    >>> input_shapes((torch.zeros(1, 3, 8, 8), torch.zeros(1, 5)))
    [(3, 8, 8), (5,)]
    """
    return [tuple(t.shape[1:]) for t in tensors_in(arguments(example))]


def packed(inputs: Sequence[Tensor]) -> Tensor:
    """Return one row for each sample: the numbers of all its inputs.

    >>> packed([torch.zeros(2, 3), torch.ones(2, 1, 2)]).tolist()
    [[0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]]
    """
    return torch.cat([t.flatten(1) for t in inputs], 1)


def unpacked(rows: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the inputs of rows that `packed` made; of a single input, the tensor as it is.

    >>> a, b = unpacked(torch.arange(6.0)[None], [(4,), (1, 2)])
    >>> a.tolist(), b.tolist()
    ([[0.0, 1.0, 2.0, 3.0]], [[[4.0, 5.0]]])
    """
    if len(shapes) == 1:
        return [rows]
    parts = rows.split([torch.Size(shape).numel() for shape in shapes], 1)
    return [part.reshape(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]


def as_example(rows: Tensor, example: Example) -> Example:
    """Return rows as an input of the example's form, on its devices and in its precision."""
    parts = iter(unpacked(rows, input_shapes(example)))
    return map_tensors(lambda t: next(parts).to(t.device, t.dtype), example)


def packed_batches(calibration: Any, example: Example) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of rows, with the labels beside them where there are any.

    Takes the inputs themselves, each with all samples, as a tuple or (for keyword arguments) a dict; or an iterable of
    batches, each the inputs, or the inputs and labels: (a, b), (a, b, labels), ((a, b), labels) or a dict.
    """
    names = list(example) if isinstance(example, Mapping) else None
    shapes = input_shapes(example)
    for batch in _batches(calibration, len(shapes)):
        inputs, rest = _parted(batch, len(shapes), names)
        _check(inputs, shapes)
        yield packed(inputs), *rest


def _batches(calibration: Any, count: int) -> Iterable[Any]:
    whole = isinstance(calibration, tuple | list) and len(calibration) in (count, count + 1)
    if isinstance(calibration, Mapping) or (whole and all(isinstance(part, Tensor) for part in calibration)):
        return [calibration]
    if not isinstance(calibration, Iterable) or isinstance(calibration, str | bytes | Tensor):
        raise InvalidInput(
            f"calibration of a model with {count} inputs must be a tuple of {count} tensors, an iterable of such "
            f"tuples, a dataset or a DataLoader, got {type(calibration).__name__}"
        )
    return calibration


def _parted(batch: Any, count: int, names: list[str] | None) -> tuple[list[Any], list[Any]]:
    """Return the inputs of a batch, and what stands beside them."""
    if isinstance(batch, Mapping):
        found = [batch.get(name) for name in names] if names else list(batch.values())[:count]
        return found, []
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], tuple | list | Mapping):
        inputs, _ = _parted(batch[0], count, names)
        return inputs, list(batch[1:])
    parts = list(batch) if isinstance(batch, tuple | list) else [batch]
    return parts[:count], parts[count:]


def _check(inputs: list[Any], shapes: Shapes) -> None:
    """Raise unless a batch holds every input, of the example's shape, for the same samples."""
    got = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in inputs]
    fits = len(inputs) == len(shapes) and all(
        isinstance(t, Tensor) and tuple(t.shape[1:]) == shape for t, shape in zip(inputs, shapes, strict=True)
    )
    if not fits or len({len(t) for t in inputs}) != 1:
        wanted = ", ".join(f"(N, {', '.join(map(str, shape))})" for shape in shapes)
        raise InvalidInput(
            f"each calibration batch must hold tensors {wanted}, one for each input, got {got}"
        )
    if not all(t.is_floating_point() for t in inputs):
        raise InvalidInput(
            "calibration needs inputs that are all floating point and normalised, got "
            f"{', '.join(str(t.dtype) for t in inputs)}"
        )
