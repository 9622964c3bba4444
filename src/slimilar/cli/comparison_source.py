"""The network and the images of a comparison, as named on the command line."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimilar.cli.comparison_options import SubjectOptions
from slimilar.cli.images import ImageReader
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.output import Output
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.comparison import Subject
    from slimilar.data import ImageFiles, Images

    Labelled = Images | ImageFiles


@dataclass(frozen=True)
class ComparisonSource:
    """A model and its images as named on the command line; every process opens them itself."""

    model: str
    source: ModelOptions
    place: Placement
    images: SubjectOptions

    def __call__(self) -> Subject:
        """Open them; once in a process."""
        return _open(self)


@functools.lru_cache(maxsize=1)
def _open(source: ComparisonSource) -> Subject:
    from slimilar.comparison import Subject

    opened, wanted = source.place.of(source.source.open(source.model)), source.images
    reader = ImageReader(Output(quiet=True), opened, wanted.preprocessing)
    train = reader.labelled(wanted.data, "train")
    if wanted.held_out is None:
        test = reader.labelled(wanted.data, "test")
    else:
        train, test = _split(train, wanted.held_out)
    parts = _evenly(train, wanted.train_images), _evenly(test, wanted.test_images)
    return Subject(opened.model, opened.example(), *parts, opened.source)


def _evenly(images: Labelled, count: int | None) -> Labelled:
    """Return so many images, taken evenly: those of a folder are in the order of their classes."""
    if count is None or count >= len(images):
        return images
    import torch

    return images.at(torch.arange(count) * len(images) // count)


def _split(images: Labelled, count: int) -> tuple[Labelled, Labelled]:
    """Return all images but so many, and those, taken evenly."""
    import torch

    if count > len(images) - 2:
        raise InvalidInput(f"--held-out must leave some of the {len(images)} training images, got {count}")
    out = torch.zeros(len(images), dtype=torch.bool)
    out[torch.arange(count) * len(images) // count] = True
    return images.at((~out).nonzero()[:, 0]), images.at(out.nonzero()[:, 0])
