"""The interface between training and datasets, and an adapter for any PyTorch dataset."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from slimilar.errors import DataError, InvalidInput

DRAWS = 5
"""Uniform random numbers in [0, 1) that an image may use for its augmentation."""


class ImageSource(Protocol):
    """A dataset that makes whole batches.

    A batch is a pure function of its arguments: ``draws`` (one row of ``DRAWS`` random numbers for each
    image; None for no augmentation) holds all its randomness. So any process, at any time, makes the same
    batch again: resuming a run and splitting it over machines depend on that.
    """

    @property
    def workers(self) -> int:
        """Processes that prepare batches beside the training; 0 where that is not worth it."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return images, ready for the network, and labels."""


@dataclass(frozen=True)
class DatasetSource:
    """Any map-style dataset of (image tensor, label) pairs as an ``ImageSource``.

    Random transforms inside it must draw from torch's generator, which is seeded for each sample.

    >>> from torch.utils.data import TensorDataset
    >>> pairs = TensorDataset(torch.zeros(4, 1, 2, 2), torch.arange(4))
    >>> DatasetSource(pairs).batch(torch.tensor([3, 1]))[1]
    tensor([3, 1])
    """

    dataset: Dataset[Any]
    workers: int = 0

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        seeds = torch.zeros(len(indices)) if draws is None else draws[:, 0]
        with torch.random.fork_rng(devices=[]):
            samples = [self._sample(int(i), float(seed)) for i, seed in zip(indices, seeds, strict=True)]
        images, labels = default_collate(samples)
        return images, torch.as_tensor(labels)

    def _sample(self, index: int, seed: float) -> Any:
        torch.manual_seed(int(seed * 2**31) + index)
        try:
            image, label = self.dataset[index]
        except (TypeError, ValueError) as error:
            message = f"sample {index} must be an (image, label) pair, but reading it failed with: {error}"
            raise DataError(message) from error
        return image, label


@dataclass(frozen=True)
class ChannelsLastSource:
    """Another source with its images as (height, width, channels), for models that take them so.

    >>> from torch.utils.data import TensorDataset
    >>> pairs = DatasetSource(TensorDataset(torch.zeros(4, 3, 8, 16), torch.arange(4)))
    >>> ChannelsLastSource(pairs).batch(torch.tensor([1]))[0].shape
    torch.Size([1, 8, 16, 3])
    """

    source: ImageSource

    @property
    def workers(self) -> int:
        return self.source.workers

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        images, labels = self.source.batch(indices, draws)
        return images.permute(0, 2, 3, 1).contiguous(), labels


Data = ImageSource | Dataset[Any]


def as_image_source(data: Data) -> ImageSource:
    """Return an ``ImageSource`` unchanged, and a map-style dataset as one."""
    if hasattr(data, "batch"):
        return cast(ImageSource, data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return DatasetSource(data)
    kind = type(data).__name__
    raise InvalidInput(f"data must be an ImageSource or a map-style dataset, got {kind}; pass loader.dataset")
