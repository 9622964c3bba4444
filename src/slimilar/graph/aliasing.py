"""Tensors that lie in the same memory: what an in-place operator writes to shows in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimilar.graph.labels import NONE, Labels, axes_of

if TYPE_CHECKING:
    from slimilar.graph.values import Values


class SharedMemory:
    """The tensors of a forward pass, by the memory that they lie in; sorted only when somebody asks."""

    def __init__(self) -> None:
        self._by_memory: dict[int, list[Tensor]] = {}
        self._unsorted: list[Tensor] = []

    def add(self, tensor: Tensor) -> None:
        """Enter a tensor."""
        self._unsorted.append(tensor)

    def others(self, target: Tensor) -> list[Tensor]:
        """Return the other tensors in the memory of one."""
        for tensor in self._unsorted:
            self._by_memory.setdefault(memory(tensor), []).append(tensor)
        self._unsorted.clear()
        return [x for x in self._by_memory.get(memory(target), []) if x is not target]


def overwrite(values: Values, target: Tensor, old: Labels, new: Labels) -> Labels:
    """Relabel the tensors that share memory with one that is written to; return what cannot leave any more."""
    if old is new and not values.any_uniform:
        return NONE
    others = values.memory.others(target)
    for x in others:
        if values.of(x).uniform:
            values.relabel(x, values.of(x).labels)
    if not others or equal(old, new):
        return NONE
    fresh = not old and not any(values.labels(x) for x in others)
    if fresh and all(same_channels(target, x, new) for x in others):
        for x in others:
            values.relabel(x, new)
        return NONE
    alike = all(equal(values.labels(x), new) and same_channels(target, x, new) for x in others)
    return NONE if alike else old + new


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
