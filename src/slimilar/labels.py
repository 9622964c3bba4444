r"""Which channel stands where: the labels that travel with every tensor of a trace.

An *atom* is one index of one axis of one parameter or buffer (row 5 of ``conv1.weight``, say), numbered from 0
over the whole network. The labels of a tensor are a tuple of *factors*: integer tensors with as many axes as the
tensor, of size 1 where they do not vary, that broadcast to its shape and hold an atom (or ``CONSTANT``) at every
position. The output of a convolution has the single factor ``(1, C, 1, 1)``; a weight has two, ``(O, 1, 1, 1)``
and ``(1, I, 1, 1)``; after ``view(b, 2, C // 2, h, w)`` the factor of an activation is ``(1, 2, C // 2, 1, 1)``.

Because a factor is itself a tensor, every operator that only moves data acts on it by being called on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Labels = tuple[Tensor, ...]
Atoms = NDArray[np.int64]

CONSTANT = -1  # a position that belongs to no channel: padding, or a part of a tensor without labels
NONE: Labels = ()


def axes_of(factor: Tensor) -> tuple[int, ...]:
    """Return the axes along which a factor varies."""
    return tuple(axis for axis, size in enumerate(factor.shape) if size > 1)


def compact(factor: Tensor) -> Tensor:
    """Give every axis along which the labels do not vary the size 1."""
    for axis, size in enumerate(factor.shape):
        if size > 1:
            first = factor.narrow(axis, 0, 1)
            if factor.stride(axis) == 0 or bool((factor == first).all()):
                factor = first
    return factor


def on_axis(vector: Tensor, axis: int, ndim: int) -> Tensor:
    """Return a vector of labels as a factor of a tensor with `ndim` axes."""
    shape = [1] * ndim
    shape[axis] = -1
    return vector.reshape(shape)


def align(factor: Tensor, ndim: int) -> Tensor:
    """Prepend axes of size 1, as broadcasting does."""
    return factor.reshape((1,) * (ndim - factor.ndim) + tuple(factor.shape))


def atoms_in(factors: Iterable[Tensor]) -> Atoms:
    """Return the distinct atoms that occur in some factors."""
    found = [f.reshape(-1).numpy() for f in factors]
    flat = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    return flat[flat >= 0]


class Ties:
    """Pairs of atoms that leave together; the classes are found once, when all pairs are known."""

    def __init__(self) -> None:
        self._pairs: list[Atoms] = []

    def add(self, a: Tensor, b: Tensor) -> None:
        """Tie `a` and `b` position by position."""
        pairs = np.stack([x.reshape(-1).numpy() for x in torch.broadcast_tensors(a, b)])
        self._pairs.append(pairs[:, pairs[0] != pairs[1]])

    def pairs(self) -> Atoms:
        """Return all pairs as an array of shape (2, n)."""
        return np.concatenate([np.empty((2, 0), np.int64), *self._pairs], axis=1)


def classes(count: int, pairs: Sequence[Atoms]) -> Atoms:
    """Return the class of each of `count` atoms when the atoms of every pair belong together.

    >>> classes(4, [np.array([[0], [2]])]).tolist()
    [0, 1, 0, 2]
    """
    if count == 0:
        return np.empty(0, np.int64)
    a, b = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    graph = coo_array((np.ones(len(a), np.bool_), (a, b)), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    # number the classes by their first atom, so that the answer does not depend on SciPy's order of visit
    _, first = np.unique(label, return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[label]
