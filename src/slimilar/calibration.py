"""Calibration pictures: anything a user may pass, as batches of one size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from slimilar.errors import InvalidInput
from slimilar.trace import Example, arguments, tensors_in


def to_batches(calibration: Any, example: Example, size: int, most: int | None = None) -> list[Tensor]:
    """Return pictures as batches of `size` (fewer where there are not as many), labels dropped.

    Takes a tensor (N, C, H, W), or an iterable of batches, each a tensor or a tuple that begins with one.

    >>> [len(b) for b in to_batches(torch.zeros(10, 3, 8, 8), torch.zeros(1, 3, 8, 8), size=4)]
    [4, 4]
    """
    pictures = _gather(calibration, most)
    wanted = list(tensors_in(arguments(example)))
    if len(wanted) != 1:
        raise InvalidInput(f"calibration needs a model with one tensor as input, got {len(wanted)}")
    if tuple(pictures.shape[1:]) != tuple(wanted[0].shape[1:]):
        raise InvalidInput(
            f"calibration pictures must have the shape of the example input, {tuple(wanted[0].shape[1:])}, "
            f"got {tuple(pictures.shape[1:])}"
        )
    if not pictures.is_floating_point():
        raise InvalidInput(
            f"calibration pictures must be floating point and normalised, got {pictures.dtype}"
        )
    if not bool(torch.isfinite(pictures).all()):
        raise InvalidInput("calibration pictures must be finite, got NaN or infinity")
    size = min(size, len(pictures))
    return list(pictures[: len(pictures) // size * size].to(wanted[0].dtype).split(size))


def _gather(calibration: Any, most: int | None) -> Tensor:
    if isinstance(calibration, Tensor):
        found = calibration
    elif isinstance(calibration, Iterable) and not isinstance(calibration, str | bytes | Mapping):
        parts, count = [], 0
        for batch in calibration:
            parts.append(_first(batch))
            count += len(parts[-1])
            if most is not None and count >= most:
                break
        if not parts:
            raise InvalidInput("calibration must hold at least one batch, got none")
        found = torch.cat(parts)
    else:
        raise InvalidInput(
            "calibration must be a tensor of pictures, an iterable of batches or a DataLoader, "
            f"got {type(calibration).__name__}"
        )
    if found.ndim < 2 or len(found) == 0:
        raise InvalidInput(
            f"calibration must hold pictures (N, channels, ...), got shape {tuple(found.shape)}"
        )
    return found.detach().cpu()[:most]


def _first(batch: Any) -> Tensor:
    """Return the pictures of a batch; labels beside them are ignored."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor):
        return batch[0]
    if isinstance(batch, Mapping):
        found = [v for v in batch.values() if isinstance(v, Tensor) and v.is_floating_point() and v.ndim >= 2]
        if found:
            return found[0]
    raise InvalidInput(f"each calibration batch must be, or begin with, a tensor, got {type(batch).__name__}")
