"""Tensors that lie in the same memory."""

from __future__ import annotations

import torch
from torch import Tensor

from slimilar.graph.labels import Labels, axes_of


def memory(tensor: Tensor) -> int:
    """Return a number for the memory that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


def equal(a: Labels, b: Labels) -> bool:
    """Tell whether two tensors have the same labels."""
    return len(a) == len(b) and all(x is y or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def same_channels(target: Tensor, other: Tensor, labels: Labels) -> bool:
    """Tell whether two tensors in one memory have the same channels: all of them, on the same axes."""
    return target.ndim == other.ndim and all(
        target.shape[a] == other.shape[a] and target.stride(a) == other.stride(a)
        for factor in labels
        for a in axes_of(factor)
    )
