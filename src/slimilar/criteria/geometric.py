r"""Filter pruning via geometric median (He et al., 2019): what lies in the middle can be replaced.

The geometric median of a layer's filters is the point with the smallest sum of distances to them all. A filter near it
carries what the others can represent, whatever its norm. Its measure is $\sum_j \lVert F_i - F_j \rVert_2$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from slimilar.criteria.base import Facts, PerGroup, Weights, by_share, free_units
from slimilar.criteria.filters import filters, has_filters
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder


@dataclass(frozen=True)
class GeometricMedian(PerGroup):
    """Remove the filters nearest the geometric median of their layer; a height is a share of the layer."""

    name: str = "geometric-median"
    facts: ClassVar[Facts] = Facts(
        "The filters nearest the geometric median of their layer are removed, the same share in every layer.",
        tag="PFGM",
    )

    def order(self, turn: int, group: ChannelGroup, weights: Weights) -> RemovalOrder | str:
        """Return the order of growing distance from the median."""
        if not has_filters(group):
            return "not written by filters: there is no geometric median"
        units = free_units(group)
        distance = sums_of_distances(filters(group, weights))[units].numpy()
        return by_share(units[np.argsort(distance, kind="stable")], turn)


def sums_of_distances(points: Tensor) -> Tensor:
    """Return for each point (a row) the sum of its distances to all.

    >>> sums_of_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]])).tolist()
    [9.0, 8.0, 7.0]
    """
    return torch.cdist(points, points).sum(1)
