"""Calibration images: anything a user may pass, as batches of one size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from slimilar.calibration.several_inputs import packed_batches
from slimilar.errors import InvalidInput
from slimilar.utils.precision import working_dtype
from slimilar.utils.pytree import Example, arguments, tensors_in

AFFORDED = 1e12  # FLOPs of one pass over all images; a network that takes more is large, and sees no flips
_AT_ONCE = 128 * 64 * 64  # pixels: larger images come in smaller batches


def batch_size(example: Example) -> int:
    """Return how many images of the example's size go into one batch.

    >>> batch_size(torch.zeros(1, 3, 32, 32)), batch_size(torch.zeros(1, 3, 224, 224))
    (128, 10)
    """
    shape = next(iter(tensors_in(arguments(example)))).shape
    return max(4, min(128, _AT_ONCE // max(1, math.prod(shape[2:]))))


def to_batches(calibration: Any, example: Example, size: int, most: int | None = None) -> list[Tensor]:
    """Return images as batches of `size` (fewer where there are not as many), labels dropped.

    Takes a tensor (N, C, H, W), a dataset, or an iterable of batches, each a tensor or a tuple that begins with one;
    for a model with several inputs, see `several_inputs`.

    >>> [len(b) for b in to_batches(torch.zeros(10, 3, 8, 8), torch.zeros(1, 3, 8, 8), size=4)]
    [4, 4]
    """
    return labelled_batches(calibration, None, example, size, most)[0]


def labelled_batches(
    calibration: Any, labels: Tensor | None, example: Example, size: int, most: int | None = None
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Return images as `to_batches` does, and their labels: those given, or those beside the images, or None.

    >>> x, y = labelled_batches([(torch.zeros(6, 3, 8, 8), torch.arange(6))], None, torch.zeros(1, 3, 8, 8), size=4)
    >>> len(x), [found.tolist() for found in y]
    (1, [[0, 1, 2, 3]])
    """
    images, beside = checked_images(calibration, labels, example, most)
    size = min(size, len(images))
    return full_batches(images, size), None if beside is None else full_batches(beside, size)


def full_batches(rows: Tensor, size: int) -> list[Tensor]:
    """Return batches of `size` rows; those that do not fill a last batch are left out.

    >>> [batch.tolist() for batch in full_batches(torch.arange(5), 2)]
    [[0, 1], [2, 3]]
    """
    return list(rows[: len(rows) // size * size].split(size))


def checked_images(
    calibration: Any, labels: Tensor | None, example: Example, most: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return all images, at most so many, in one tensor of the example's shape, and their labels or None.

    The inputs of a model with several are packed: a row for each sample.
    """
    wanted = list(tensors_in(arguments(example)))
    calibration = as_batches(calibration)
    several = len(wanted) > 1
    images, beside = gather(packed_batches(calibration, example) if several else calibration, most)
    if labels is not None:
        beside = check_labels(labels)
        if len(beside) < len(images) or (len(beside) > len(images) and len(images) != most):
            raise InvalidInput(
                f"labels must be one for each of the {len(images)} calibration images, got {len(beside)}"
            )
        beside = beside[: len(images)]
    if not several and tuple(images.shape[1:]) != tuple(wanted[0].shape[1:]):
        raise InvalidInput(
            f"calibration images must have the shape of the example input, {tuple(wanted[0].shape[1:])}, "
            f"got {tuple(images.shape[1:])}"
        )
    if not images.is_floating_point():
        raise InvalidInput(f"calibration images must be floating point and normalised, got {images.dtype}")
    if not bool(torch.isfinite(images).all()):
        raise InvalidInput("calibration images must be finite, got NaN or infinity")
    return images.to(working_dtype(wanted[0].dtype)), beside


def as_batches(calibration: Any) -> Any:
    """Return a dataset as a loader of its samples in batches; anything else as it is.

    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3, 4))
    >>> [[tuple(t.shape) for t in batch] for batch in as_batches(pairs)]
    [[(3, 2), (3, 4)]]
    """
    return DataLoader(calibration, batch_size=64) if isinstance(calibration, Dataset) else calibration


def check_labels(labels: Any) -> Tensor:
    """Return labels on the CPU if they are one whole number for each image."""
    if not isinstance(labels, Tensor) or not _are_labels(labels):
        got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidInput(f"labels must be a tensor of whole numbers, one for each image, got {got}")
    return labels.detach().cpu().long()


def _are_labels(found: Any) -> bool:
    whole = isinstance(found, Tensor) and not found.is_floating_point() and not found.is_complex()
    return whole and found.ndim == 1 and found.dtype is not torch.bool


def gather(calibration: Any, most: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the first `most` images and the labels beside them, None without; goes through an iterable once.

    >>> gather(torch.zeros(2, 3, 8, 8) for _ in range(4))[0].shape
    torch.Size([8, 3, 8, 8])
    """
    labels: list[Tensor] = []
    if isinstance(calibration, Tensor):
        found = calibration
    elif isinstance(calibration, Iterable) and not isinstance(calibration, str | bytes | Mapping):
        parts, count = [], 0
        for batch in calibration:
            parts.append(_first(batch))
            labels += _second(batch, len(parts[-1]))
            count += len(parts[-1])
            if most is not None and count >= most:
                break
        if not parts:
            raise InvalidInput("calibration must hold at least one batch, got none")
        found = torch.cat(parts)
    else:
        raise InvalidInput(
            "calibration must be a tensor of images, an iterable of batches or a DataLoader, "
            f"got {type(calibration).__name__}"
        )
    if found.ndim < 2 or len(found) == 0:
        raise InvalidInput(f"calibration must hold images (N, channels, ...), got shape {tuple(found.shape)}")
    beside = torch.cat(labels).detach().cpu().long()[:most] if labels else None
    found = found.detach().cpu()[:most]
    return found, beside if beside is not None and len(beside) == len(found) else None


def _first(batch: Any) -> Tensor:
    """Return the images of a batch; labels beside them are ignored."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor):
        return batch[0]
    if isinstance(batch, Mapping):
        found = [v for v in batch.values() if isinstance(v, Tensor) and v.is_floating_point() and v.ndim >= 2]
        if found:
            return found[0]
    raise InvalidInput(f"each calibration batch must be, or begin with, a tensor, got {type(batch).__name__}")


def _second(batch: Any, count: int) -> list[Tensor]:
    """Return the labels beside the images of a batch, if there are any."""
    if (
        isinstance(batch, list | tuple)
        and len(batch) > 1
        and _are_labels(batch[1])
        and len(batch[1]) == count
    ):
        return [batch[1]]
    return []
