"""Inputs beside the example on which a smaller model has to agree with the original: other batch and image sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from slimilar.utils.pytree import Example, map_tensors, tensors_in

_SIDES = (32, 96)  # images twice as large are made as small as this: most networks halve them five times


def random_like(example: Example, dtype: torch.dtype | None, device: torch.device) -> Example:
    """Return random numbers in the shapes of an example; whole numbers stay as they are."""
    generator = torch.Generator().manual_seed(0)

    def make(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t.to(device)
        noise = torch.randn(t.shape, generator=generator, dtype=torch.float32)
        return noise.to(device=device, dtype=dtype or t.dtype)

    return map_tensors(make, example)


def with_small_images(example: Example) -> Iterator[Example]:
    """Yield examples with smaller images; none where they are small already, or there are none."""
    side = _smallest_side(example) or 0
    for scale in [Fraction(wanted, side) for wanted in _SIDES if side >= 2 * wanted]:
        yield _resized(example, partial(_scaled, scale=scale, multiple=32))


def other_inputs(example: Example) -> Iterator[tuple[str, Example]]:
    """Yield inputs of other batch sizes, and with larger images, each with a name for messages.

    >>> [name for name, _ in other_inputs(torch.zeros(2, 3, 32, 32))]
    ['a batch of 1', 'a batch of 3', 'images of 48 by 48']
    """
    batch = next((len(t) for t in tensors_in(example) if t.ndim), 0)
    for size in (1, 3) if batch else ():
        if size != batch:
            yield f"a batch of {size}", _rebatched(example, batch, size)
    side = _smallest_side(example)
    if side is not None:
        larger = _resized(example, partial(_scaled, scale=Fraction(3, 2), multiple=16))
        height, width = next(t for t in tensors_in(larger) if _is_image(t)).shape[-2:]
        yield f"images of {height} by {width}", larger


def _scaled(length: int, scale: Fraction, multiple: int) -> int:
    return math.ceil(length * scale / multiple) * multiple


def _is_image(t: Tensor) -> bool:
    return t.is_floating_point() and t.ndim == 4


def _smallest_side(example: Example) -> int | None:
    return min((side for t in tensors_in(example) if _is_image(t) for side in t.shape[-2:]), default=None)


def _rebatched(example: Example, old: int, new: int) -> Example:
    """Return an example with another number of entries along the first axis of all that has `old` there."""
    index = torch.arange(new) % old

    def rebatch(t: Tensor) -> Tensor:
        return t[index.to(t.device)] if t.ndim and len(t) == old else t

    return map_tensors(rebatch, example)


def _resized(example: Example, length: Callable[[int], int]) -> Example:
    """Return an example with images of other sides: cut off, or repeated."""

    def resize(t: Tensor) -> Tensor:
        if not _is_image(t):
            return t
        rows, columns = (torch.arange(length(side), device=t.device) % side for side in t.shape[-2:])
        return t[..., rows, :][..., columns]

    return map_tensors(resize, example)
