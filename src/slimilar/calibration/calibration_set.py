"""The calibration set: the images a network is measured and fitted on, made once from anything a user may pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from slimilar.calibration.batches import batch_size, checked_images, full_batches
from slimilar.calibration.synthesis import synthesize
from slimilar.errors import InvalidInput
from slimilar.utils.batch_halving import halving
from slimilar.utils.pytree import Example

MAX_IMAGES = 2048  # no more are used
SYNTHESIZE = "synthesize"  # in place of images: make them from the network's batch-norm statistics

Origin = Literal["none", "given", "synthesised"]
Made = TypeVar("Made")
Progress = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Images of the example's shape, their labels where these are known, and where the images came from.

    `batches` are all of one size: images that do not fill a last batch are left out. A set without images is false.

    >>> import torch
    >>> found = calibration_set(torch.zeros(10, 3, 8, 8), None, torch.zeros(1, 3, 8, 8))
    >>> len(found), [len(batch) for batch in found.batches], found.origin
    (10, [10], 'given')
    >>> bool(calibration_set(None, None, torch.zeros(1, 3, 8, 8)))
    False
    """

    images: Tensor | None = None  # at most `MAX_IMAGES`
    labels: Tensor | None = None  # one for each image
    origin: Origin = "none"
    seed: int = 0  # of everything that is drawn at random
    batch_size: int = 1

    def __len__(self) -> int:
        return 0 if self.images is None else len(self.images)

    @property
    def batches(self) -> list[Tensor]:
        """The images in batches."""
        return [] if self.images is None else full_batches(self.images, self.batch_size)

    @property
    def label_batches(self) -> list[Tensor] | None:
        """The labels of each batch, None if they are not known."""
        return None if self.labels is None else full_batches(self.labels, self.batch_size)

    def only(self, images: Tensor) -> CalibrationSet:
        """Return a set of some of the images, without labels."""
        size = min(self.batch_size, len(images))
        return replace(self, images=images, labels=None, batch_size=size)


def wants_synthesis(images: Any) -> bool:
    """Tell whether images are to be made from the network itself."""
    if isinstance(images, str) and images != SYNTHESIZE:
        raise InvalidInput(f'calibration must be images or "{SYNTHESIZE}", got {images!r}')
    return isinstance(images, str)


def calibration_set(
    images: Any,
    labels: Tensor | None,
    example: Example,
    *,
    model: nn.Module | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CalibrationSet:
    """Return the calibration set of a tensor, an iterable of batches, a `DataLoader`, "synthesize", or None.

    Labels may be given, or stand beside the images in each batch. An iterable is gone through once. Synthesis needs
    the `model`. A calibration set is returned as it is, with the given seed.
    """
    if isinstance(images, CalibrationSet):
        return replace(images, seed=seed)
    if images is None:
        return CalibrationSet(seed=seed)
    origin: Origin = "given"
    if wants_synthesis(images):
        if model is None:
            raise InvalidInput("to synthesise images, the model must be given, got none")
        images, origin = synthesize(model, example, seed=seed, progress=progress), "synthesised"
    found, beside = checked_images(images, labels, example, MAX_IMAGES)
    return CalibrationSet(found, beside, origin, seed, min(batch_size(example), len(found)))


def with_smaller_batches(
    data: CalibrationSet, device: torch.device, work: Callable[[CalibrationSet], Made]
) -> Made:
    """Return what `work` makes of a calibration set, in smaller batches where memory runs out."""
    if not data:
        return work(data)
    return halving(data.batch_size, lambda size: work(replace(data, batch_size=size)), device)
