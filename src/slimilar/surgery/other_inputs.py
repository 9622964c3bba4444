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
    return fresh(map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else None), example))


def fresh(example: Example) -> Example:
    """Return other random numbers for those of an input: images that repeat would hide that they are mixed up."""
    generator = torch.Generator().manual_seed(0)

    def make(t: Tensor) -> Tensor:
        noise = torch.randn(t.shape, generator=generator, dtype=torch.float32) if t.is_floating_point() else t
        return noise.to(device=t.device, dtype=t.dtype)

    return map_tensors(make, example)


def with_small_images(example: Example) -> Iterator[Example]:
    """Yield examples with smaller images; none where they are small already, or there are none."""
    side = _smallest_side(example) or 0
    for scale in [Fraction(wanted, side) for wanted in _SIDES if side >= 2 * wanted]:
        yield _resized(example, partial(_scaled, scale=scale, multiple=32))


def other_inputs(example: Example, other_images: bool = True) -> Iterator[tuple[str, Example]]:
    """Yield inputs of other batch sizes and, unless the images have another size already, with larger images.

    Each comes with a name for messages.

    >>> [name for name, _ in other_inputs(torch.zeros(2, 3, 32, 32))]
    ['a batch of 1', 'a batch of 3', 'images of 48 by 48']
    """
    for size in other_batches(example):
        yield batch_name(size), rebatched(example, size)
    if other_images and _smallest_side(example) is not None:
        larger = _larger(example)
        yield image_name(larger), larger


def other_batches(example: Example) -> list[int]:
    """Return the batch sizes to try beside the example's; none where it has no batch."""
    batch = batch_size(example)
    return [size for size in (1, 3) if size != batch] if batch else []


def combined_input(example: Example) -> tuple[list[str], Example] | None:
    """Return one input that is larger in every way that `other_inputs` knows, and the names of those that it covers.

    A network that agrees on it need not run on each of them. None where no two can be combined.

    >>> names, larger = combined_input(torch.zeros(2, 3, 32, 32))
    >>> names, tuple(larger.shape)
    (['a batch of 3', 'images of 48 by 48'], (3, 3, 48, 48))
    """
    if batch_size(example) in (0, 3) or _smallest_side(example) is None:
        return None
    larger = _larger(example)
    return [batch_name(3), image_name(larger)], rebatched(larger, 3)


def batch_size(example: Example) -> int:
    """Return the number of entries of the first tensor that has any axis."""
    return next((len(t) for t in tensors_in(example) if t.ndim), 0)


def batch_name(size: int) -> str:
    """Return how messages call a batch of another size."""
    return f"a batch of {size}"


def _larger(example: Example) -> Example:
    return _resized(example, partial(_scaled, scale=Fraction(3, 2), multiple=16))


def image_name(example: Example) -> str:
    """Return how messages call the first image's size."""
    height, width = next(t for t in tensors_in(example) if _is_image(t)).shape[-2:]
    return f"images of {height} by {width}"


def _scaled(length: int, scale: Fraction, multiple: int) -> int:
    return math.ceil(length * scale / multiple) * multiple


def _is_image(t: Tensor) -> bool:
    return t.is_floating_point() and t.ndim == 4


def _smallest_side(example: Example) -> int | None:
    return min((side for t in tensors_in(example) if _is_image(t) for side in t.shape[-2:]), default=None)


def rebatched(example: Example, size: int) -> Example:
    """Return an example of another batch size: what has as many entries as its first tensor is cut, or repeated."""
    old = batch_size(example)
    index = torch.arange(size) % old

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
