"""The paper's criterion: distance by batch norm (Eq. 4), normalised per layer, clustered, cut at one threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from slimilar.criteria.base import Facts, Weights, free_units, renumber
from slimilar.groups import BatchNorm, ChannelGroup
from slimilar.similarity import (
    Floats,
    Linkage,
    RemovalOrder,
    channel_pairs,
    is_uninformative,
    linkage_tree,
    normalise,
    removal_order,
)


@dataclass(frozen=True)
class Similarity:
    """Remove channels that say the same as another; the one with the largest |gamma| speaks for all."""

    linkage: Linkage = "average"
    name: str = "similarity"
    facts: ClassVar[Facts] = Facts(
        "Channels that batch norm says are alike are clustered, and one of each cluster stays.",
        tag="Ours",
        automatic=True,
    )

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        return [self._order(group, weights) for group in groups]

    def _order(self, group: ChannelGroup, weights: Weights) -> RemovalOrder | str:
        distance = group_distance(group, weights)
        if distance is None:
            return "no batch norm: there is no similarity to measure"
        if is_uninformative(distance):
            return "untrained batch norm: all channels are equally far apart"
        tree = linkage_tree(normalise(distance), self.linkage)
        units = free_units(group)
        return renumber(removal_order(tree, spread(group, weights)[units]), units)


def group_distance(group: ChannelGroup, weights: Weights) -> Floats | None:
    """Return the distance of every two free units i < j: the sum over the batch norms that normalise the group."""
    units = torch.from_numpy(free_units(group))
    found = [
        (beta[place], gamma[place])
        for norm in group.batch_norms
        for beta, gamma in [moments_of(norm, weights)]
        for place in torch.from_numpy(norm.positions)[units].T
    ]
    if not found:
        return None
    return channel_pairs(torch.stack([b for b, _ in found]), torch.stack([g for _, g in found]))


def spread(group: ChannelGroup, weights: Weights) -> Tensor:
    """Return the sum of |gamma| of every unit over its batch norms."""
    total = torch.zeros(group.width, dtype=torch.float64)
    for norm in group.batch_norms:
        gamma = moments_of(norm, weights)[1].abs().double()
        total += gamma[torch.from_numpy(norm.positions)].sum(1)
    return total


def moments_of(norm: BatchNorm, weights: Weights) -> tuple[Tensor, Tensor]:
    """Return beta and gamma of a batch norm; without an affine part they are 0 and 1."""
    held = [weights.tensors[n] for n in (norm.weight, norm.bias, norm.running_mean) if n is not None]
    size = len(held[0]) if held else int(norm.positions.max()) + 1
    beta = weights.tensors[norm.bias] if norm.bias is not None else torch.zeros(size)
    gamma = weights.tensors[norm.weight] if norm.weight is not None else torch.ones(size)
    return beta.detach().cpu(), gamma.detach().cpu()
