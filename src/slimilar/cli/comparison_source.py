"""The network and the images of a comparison, as named on the command line."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimilar.cli.images import labelled
from slimilar.cli.model_source import open_model
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from slimilar.comparison import Subject
    from slimilar.data import ImageFiles, Images

    Labelled = Images | ImageFiles


@dataclass(frozen=True)
class ComparisonSource:
    """A model and its images as named on the command line; every process opens them itself."""

    model: str
    weights: str | None
    shapes: tuple[str, ...]
    base: str | None
    data: str
    normalise: str
    train: int | None
    test: int | None
    held_out: int | None
    device: str = "auto"
    dtype: str | None = None

    def __call__(self) -> Subject:
        """Open them; once in a process."""
        return _open(self)


@functools.lru_cache(maxsize=1)
def _open(source: ComparisonSource) -> Subject:
    from slimilar.comparison import Subject

    opened = open_model(source.model, source.weights, source.shapes, source.base)
    opened = opened.placed(source.device, source.dtype)
    train = labelled(opened, source.data, "train", None, source.normalise)
    if source.held_out is None:
        test = labelled(opened, source.data, "test", None, source.normalise)
    else:
        train, test = _split(train, source.held_out)
    parts = _evenly(train, source.train), _evenly(test, source.test)
    return Subject(opened.model, opened.example(), *parts, opened.source)


def _evenly(images: Labelled, count: int | None) -> Labelled:
    """Return so many images, taken evenly: those of a folder are in the order of their classes."""
    if count is None or count >= len(images):
        return images
    import torch

    return _at(images, torch.arange(count) * len(images) // count)


def _split(images: Labelled, count: int) -> tuple[Labelled, Labelled]:
    """Return all images but so many, and those, taken evenly."""
    import torch

    if count > len(images) - 2:
        raise InvalidInput(f"--held-out must leave some of the {len(images)} training images, got {count}")
    out = torch.zeros(len(images), dtype=torch.bool)
    out[torch.arange(count) * len(images) // count] = True
    return _at(images, (~out).nonzero()[:, 0]), _at(images, out.nonzero()[:, 0])


def _at(images: Labelled, places: Tensor) -> Labelled:
    """Return the images at some places."""
    from slimilar.data import ImageFiles

    labels = images.labels[places]
    if isinstance(images, ImageFiles):
        return dataclasses.replace(images, files=tuple(images.files[i] for i in places), labels=labels)
    return dataclasses.replace(images, images=images.images[places], labels=labels)
