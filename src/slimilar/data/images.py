"""Small images held in memory, and their augmentation a whole batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slimilar.errors import DataError


@dataclass(frozen=True)
class Normalisation:
    """What a network expects of its input: ``(pixel / 255 - mean) / std`` for every channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, images: Tensor) -> Tensor:
        """Return bytes (images, height, width, channels) as normalised floats, channels second.

        >>> Normalisation((0.5,), (0.5,)).apply(torch.tensor([[[[0], [255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        std = torch.tensor(self.std, device=images.device)
        mean = torch.tensor(self.mean, device=images.device)
        # In this order of axes the answer is channels-last in memory, which convolutions on a CPU prefer.
        return images.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std).permute(0, 3, 1, 2)


RAW = Normalisation()


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes (images, height, width, channels) with their labels; floats only batch by batch.

    With ``draws``, a batch is augmented as is usual for CIFAR: a random crop after padding by
    ``padding`` black pixels, and a horizontal flip half of the time (``flip=False`` for digits and letters).

    >>> images = Images(torch.zeros(8, 32, 32, 3, dtype=torch.uint8), torch.arange(8))
    >>> images.batch(torch.tensor([2, 5]), torch.rand(2, 5))[0].shape
    torch.Size([2, 3, 32, 32])
    """

    images: Tensor
    labels: Tensor
    normalisation: Normalisation = RAW
    class_names: tuple[str, ...] = ()
    padding: int = 4
    flip: bool = True
    workers: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            got = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise DataError(f"images must be uint8 of shape (images, height, width, channels), got {got}")
        if self.labels.shape != self.images.shape[:1]:
            got = f"{len(self.images)} images and labels of shape {tuple(self.labels.shape)}"
            raise DataError(f"there must be one label for each image, got {got}")

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.images.device)
        images = self.images[indices]
        if draws is not None:
            images = crop_and_flip(images, draws.to(images.device), self.padding, self.flip)
        return self.normalisation.apply(images), self.labels[indices]

    def tensor(self) -> Tensor:
        """Return all images, normalised, channels second: calibration data for a pruner."""
        return self.normalisation.apply(self.images).contiguous()

    def first(self, count: int) -> Images:
        """Return the first ``count`` images."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def normalised(self, normalisation: Normalisation) -> Images:
        """Return the same images for a network that expects another normalisation."""
        return replace(self, normalisation=normalisation)

    def to(self, device: torch.device) -> Images:
        """Return the same images in the memory of ``device``, where batches are then made."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def crop_and_flip(images: Tensor, draws: Tensor, padding: int, flip: bool = True) -> Tensor:
    """Shift each image by at most ``padding`` pixels, and flip half of them horizontally; new pixels are black.

    ``draws`` are uniform in [0, 1): their columns decide on the shift down, the shift right, and the flip.
    One gather for the batch; no loop over images.
    """
    count, height, width, channels = images.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    padded = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    top, left = (draws[:, :2].T * (2 * padding + 1)).long()
    columns = torch.arange(width, device=images.device).expand(count, width)
    if flip:
        columns = torch.where(draws[:, 2:3] < 0.5, columns, width - 1 - columns)
    rows = torch.arange(count, device=images.device) * tall + top
    rows = rows[:, None] + torch.arange(height, device=images.device)
    pixel = rows[:, :, None] * wide + (columns + left[:, None])[:, None, :]
    # index_select on a flat list of pixels is five times as fast as indexing by three tensors
    return padded.view(-1, channels).index_select(0, pixel.view(-1)).view(images.shape)
