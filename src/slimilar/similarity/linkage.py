"""Hierarchical clustering of a layer's channels, and the removal order it implies."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from scipy.cluster import hierarchy
from torch import Tensor

from slimilar.errors import InvalidInput
from slimilar.similarity.distances import Floats, checked_pairs, float64
from slimilar.similarity.removal_order import Ints, RemovalOrder

Linkage = Literal["average", "complete", "single"]


def linkage_tree(distance: Tensor | Floats, linkage: Linkage = "average") -> Floats:
    """Return SciPy's linkage matrix of the channels: n - 1 merges in order of height.

    Deterministic: among equal distances, the lowest index comes first.

    >>> linkage_tree(torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]])).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 3.0]]
    """
    if linkage not in get_args(Linkage):
        raise InvalidInput(f"linkage must be one of {', '.join(get_args(Linkage))}, got {linkage!r}")
    pairs = checked_pairs(distance)
    if len(pairs) == 0:
        return np.zeros((0, 4))
    tree: Floats = hierarchy.linkage(pairs, method=linkage)
    return tree


def removal_order(tree: Floats, gamma: Tensor | Floats) -> RemovalOrder:
    """Convert a linkage tree into a removal order.

    Each merge keeps the representative with the larger |gamma| of the two clusters (the lower index if they are
    equal) and removes the other. So the representative of a cluster is its channel with the largest |gamma|.

    >>> tree = linkage_tree(torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]]))
    >>> order = removal_order(tree, torch.tensor([0.5, -0.7, 0.6]))
    >>> order.removed.tolist(), order.representative.tolist(), order.heights.tolist()
    ([0, 2], [1, 1], [1.0, 3.0])
    """
    removed, representative = merged(tree, _sizes(gamma, len(tree) + 1))
    return RemovalOrder(removed, np.maximum.accumulate(tree[:, 2]), representative)


def merged(merges: Floats, size: list[float]) -> tuple[Ints, Ints]:
    """Return the channel that is removed and its representative at each merge, given |gamma| of all channels."""
    of_cluster = list(range(len(size)))  # cluster, as SciPy numbers them -> its representative
    removed, representative = [], []
    for left, right in merges[:, :2].astype(np.int64).tolist():
        kept, gone = of_cluster[left], of_cluster[right]
        if size[gone] > size[kept] or (size[gone] == size[kept] and gone < kept):
            kept, gone = gone, kept
        of_cluster.append(kept)
        removed.append(gone)
        representative.append(kept)
    return np.array(removed, np.int64), np.array(representative, np.int64)


def _sizes(gamma: Tensor | Floats, n: int) -> list[float]:
    """Return |gamma| of n channels as a list of floats."""
    values = float64(torch.as_tensor(gamma))
    if tuple(values.shape) != (n,) or not values.isfinite().all():
        got = f"shape {tuple(values.shape)}" if tuple(values.shape) != (n,) else "NaN or infinity"
        raise InvalidInput(f"gamma must hold {n} finite values, one for each leaf of the tree, got {got}")
    sizes: list[float] = values.abs().tolist()
    return sizes
