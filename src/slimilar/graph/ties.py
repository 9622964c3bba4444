"""Channels that leave together: collected in pairs while a model runs, sorted into classes afterwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slimilar.graph.labels import CONSTANT, Atoms, side_by_side


class Constant(NamedTuple):
    """Channels that were tied to a constant, by which operator, and how many freezes came before."""

    atoms: Atoms
    op: int
    place: int


class _Pair(NamedTuple):
    a: Tensor
    b: Tensor
    sums: bool
    op: int
    place: int


class PendingTies:
    """Pairs of factors that are tied; they are looked at all at once, which is faster than one by one."""

    def __init__(self) -> None:
        self._pending: list[_Pair] = []
        self._sorted: dict[bool, list[tuple[Atoms, Atoms]]] = {False: [], True: []}  # by `sums`

    def add(self, a: Tensor, b: Tensor, sums: bool, op: int, place: int) -> None:
        """Tie two factors, broadcast against each other, position by position."""
        self._pending.append(_Pair(a, b, sums, op, place))

    def sort(self) -> list[Constant]:
        """Look at the pending pairs; return what was tied to constants."""
        found = [side_by_side(pair.a, pair.b) for pair in self._pending]
        constants = []
        if found and _meets_constant(*(np.concatenate(side) for side in zip(*found, strict=True))).any():
            for (x, y), pair in zip(found, self._pending, strict=True):
                fixed = _meets_constant(x, y)
                if fixed.any():
                    constants.append(Constant(np.unique(np.maximum(x, y)[fixed]), pair.op, pair.place))
        for vectors, pair in zip(found, self._pending, strict=True):
            self._sorted[pair.sums].append(vectors)
        self._pending.clear()
        return constants

    def pairs(self, sums: bool) -> Atoms:
        """Return all sorted pairs of atoms as an array of shape (2, n); what belongs to no channel is left out."""
        empty = np.empty(0, np.int64)
        a = np.concatenate([empty, *(a for a, _ in self._sorted[sums])])
        b = np.concatenate([empty, *(b for _, b in self._sorted[sums])])
        pairs: Atoms = np.stack([a, b])
        return pairs if pairs.min(initial=0) >= 0 else pairs[:, (a >= 0) & (b >= 0)]


def _meets_constant(a: Atoms, b: Atoms) -> NDArray[np.bool_]:
    """Tell, position by position, whether exactly one of the two is a constant."""
    found: NDArray[np.bool_] = (a == CONSTANT) != (b == CONSTANT)
    return found
