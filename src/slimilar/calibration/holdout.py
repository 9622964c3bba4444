"""Hold images out: what is fitted and what is measured are never the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_EVERY = 4  # one image of so many is held out


@dataclass(frozen=True, eq=False)
class Holdout:
    """A calibration set in two parts without a common image; all batches of a part have one size."""

    fit: list[Tensor]
    measure: list[Tensor]

    @property
    def fitted(self) -> int:
        """How many images kernels are fitted to."""
        return sum(map(len, self.fit))

    @property
    def measured(self) -> int:
        """How many images are left to measure on."""
        return sum(map(len, self.measure))


def hold_out(batches: Sequence[Tensor]) -> Holdout:
    """Return three quarters of the images to fit to, and one quarter to measure on.

    Of many batches every fourth is held out as it is, so that no image is copied; of few, every fourth image is.
    A single image can only be fitted to.

    >>> parts = hold_out([torch.arange(8.0), torch.arange(8.0, 16)])
    >>> [b.tolist() for b in parts.measure]
    [[3.0, 7.0, 11.0, 15.0]]
    >>> parts.fitted
    12
    """
    if len(batches) >= 2 * _EVERY:
        held = range(_EVERY - 1, len(batches), _EVERY)
        return Holdout([b for i, b in enumerate(batches) if i not in held], [batches[i] for i in held])
    images = torch.cat(list(batches))
    held_out = torch.arange(len(images)) % _EVERY == min(_EVERY, len(images)) - 1
    if len(images) < 2:
        held_out[:] = False
    most = len(batches[0])
    return Holdout(even_batches(images[~held_out], most), even_batches(images[held_out], most))


def even_batches(images: Tensor, most: int) -> list[Tensor]:
    """Return batches of one size, at most `most`, that leave out as few images as possible.

    >>> [len(b) for b in even_batches(torch.zeros(9), most=4)], [len(b) for b in even_batches(torch.zeros(3), 8)]
    ([3, 3, 3], [3])
    """
    count = len(images)
    if count == 0:
        return []
    sizes = range(min(most, count), min(most, count) // 2, -1)
    size = min(sizes, key=lambda s: count % s)
    return list(images[: count // size * size].split(size))
