"""The paper's criterion: distance by batch norm (Eq. 4), normalised per layer, clustered, cut at one threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from slimilar.criteria.base import Facts, Weights, free_units
from slimilar.graph.groups import BatchNorm, ChannelGroup
from slimilar.similarity.distances import Floats
from slimilar.similarity.linkage import Linkage
from slimilar.similarity.partial_linkage import LateOrder, Layer
from slimilar.similarity.removal_order import RemovalOrder

_Key = tuple[int, str | None, str | None]
_Moments = tuple[Floats, Floats]  # beta and gamma of a batch norm


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
        known: dict[_Key, _Moments] = {}
        return [self._order(group, weights, known) for group in groups]

    def _order(
        self, group: ChannelGroup, weights: Weights, known: dict[_Key, _Moments]
    ) -> RemovalOrder | str:
        if not group.batch_norms:
            return "no batch norm: there is no similarity to measure"
        order = LateOrder(layer_of(group, weights, self.linkage, known))
        if order.is_uninformative:
            return "untrained batch norm: all channels are equally far apart"
        return order


def layer_of(group: ChannelGroup, weights: Weights, linkage: Linkage, known: dict[_Key, _Moments]) -> Layer:
    """Return the moments of every free unit, over the batch norms that normalise the group.

    `known` keeps those of every batch norm, because many groups may share one.
    """
    units = free_units(group)
    means, spreads, size = [], [], np.zeros(len(units))
    for norm in group.batch_norms:
        key = norm.op, norm.weight, norm.bias
        if (
            key not in known or len(known[key][0]) <= norm.positions.max()
        ):  # without any tensor its size is not known
            beta, gamma = moments_of(norm, weights)
            known[key] = beta.double().numpy(), gamma.double().numpy()
        place = norm.positions.T if len(units) == group.width else norm.positions[units].T
        beta_of, gamma_of = (moment[place] for moment in known[key])
        means.append(beta_of)
        spreads.append(gamma_of)
        size += np.abs(gamma_of).sum(0)
    every = np.concatenate(spreads)
    return Layer(units, np.concatenate(means).T, np.square(every).sum(0), size, linkage)


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
