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
    for axis, (size, stride) in enumerate(zip(factor.shape, factor.stride(), strict=True)):
        if size > 1 and stride == 0:
            factor = factor.narrow(axis, 0, 1)
    for axis, size in enumerate(factor.shape):
        if size > 1:
            first = factor.narrow(axis, 0, 1)
            factor = first if bool((factor == first).all()) else factor
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
    found = [once(f)[0].numpy().reshape(-1) for f in factors]
    if not found:
        return np.empty(0, np.int64)
    flat = np.unique(np.concatenate(found))
    return flat[flat >= 0]


def side_by_side(a: Tensor, b: Tensor) -> tuple[Atoms, Atoms]:
    """Return two factors, broadcast against each other, as vectors; pairs that only repeat others are left out.

    >>> side_by_side(torch.tensor([[0, 1], [2, 3], [2, 3]]), torch.tensor([[4, 5]]))
    (array([0, 1, 2, 3]), array([4, 5, 4, 5]))
    """
    if a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)
    a, b = once(a, b)
    return a.numpy().reshape(-1), b.numpy().reshape(-1)


def once(*factors: Tensor) -> tuple[Tensor, ...]:
    """Leave out the slices of factors of one shape that are all the same as those before.

    A thousand tokens have the same channels each: their labels meet others a thousand times.
    """
    axes = axes_of(factors[0])
    for axis in axes if len(axes) > 1 else ():
        count = factors[0].shape[axis] - 1
        same = [f.narrow(axis, 1, count) == f.narrow(axis, 0, count) for f in factors]
        apart = ~torch.stack(same).all(0).movedim(axis, 0).flatten(1).all(1)
        if not bool(apart.all()):
            kept = torch.cat([apart.new_ones(1), apart]).nonzero().squeeze(1)
            factors = tuple(f.index_select(axis, kept) for f in factors)
    return factors


def roots(label: Atoms, pairs: Atoms) -> Atoms:
    """Join classes that are named by their lowest atom: the two of every pair of shape (2, n) become one.

    Each round hangs the higher of two roots below the lower one and goes up from every atom to its root. As a root is
    the lowest of its class, the answer does not depend on the order of the pairs.
    """
    a, b = label[pairs[0]], label[pairs[1]]
    while True:
        apart = np.flatnonzero(a != b)
        if not len(apart):
            return label
        a, b = a[apart], b[apart]
        above = label.copy()
        np.minimum.at(above, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(above, label):
            label, above = above, above[above]
        a, b = label[a], label[b]


def numbered(label: Atoms) -> Atoms:
    """Number classes that are named by their lowest atom, in its order.

    >>> numbered(np.array([0, 1, 0, 3])).tolist()
    [0, 1, 0, 2]
    """
    number: Atoms = np.cumsum(label == np.arange(len(label)), dtype=np.int64) - 1
    return number[label]


def classes(count: int, pairs: Sequence[Atoms]) -> Atoms:
    """Return the class of each of `count` atoms when the atoms of every pair belong together.

    >>> classes(4, [np.array([[0], [2]])]).tolist()
    [0, 1, 0, 2]
    """
    return numbered(roots(np.arange(count), np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)))
