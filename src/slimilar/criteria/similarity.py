"""The paper's criterion: distance by batch norm (Eq. 4), normalised per layer, clustered, cut at one threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from slimilar.criteria.base import Facts, Weights, free_units, renumber
from slimilar.graph.groups import BatchNorm, ChannelGroup
from slimilar.graph.reasons import FreezeKind, Reason
from slimilar.planning.assemble import Answer
from slimilar.similarity.distances import Floats, is_uninformative, normalise, pair_distances
from slimilar.similarity.linkage import Linkage, linkage_tree, removal_order

_Key = tuple[int, str | None, str | None]
_BetaGamma = tuple[Floats, Floats]  # of a batch norm

UNTRAINED = Reason(FreezeKind.UNTRAINED_NORM, "untrained batch norm: all channels are equally far apart")


@dataclass(frozen=True)
class Similarity:
    """Remove channels that carry the same information as another; the largest |gamma| of a cluster stays."""

    linkage: Linkage = "average"
    name: str = "similarity"
    facts: ClassVar[Facts] = Facts(
        "Channels with similar batch-norm statistics are clustered, and one of each cluster stays.",
        tag="Ours",
        automatic=True,
    )

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[Answer]:
        """Return the removal order of every group."""
        known: dict[_Key, _BetaGamma] = {}
        return [self._order(group, weights, known) for group in groups]

    def _order(self, group: ChannelGroup, weights: Weights, known: dict[_Key, _BetaGamma]) -> Answer:
        if not group.batch_norms:
            return "no batch norm: there is no similarity to measure"
        units = free_units(group)
        beta, gamma = _statistics(group, weights, known)
        pairs = pair_distances(beta[:, units].T, np.square(gamma[:, units]).sum(0))
        if is_uninformative(pairs):
            return UNTRAINED
        tree = linkage_tree(normalise(pairs), self.linkage)
        return renumber(removal_order(tree, np.abs(gamma[:, units]).sum(0)), units)


def _statistics(group: ChannelGroup, weights: Weights, known: dict[_Key, _BetaGamma]) -> _BetaGamma:
    """Return beta and gamma of every unit, of shape (batch norms, units), over those that normalise the group.

    `known` keeps those of every batch norm, because many groups may share one.
    """
    betas, gammas = [], []
    for norm in group.batch_norms:
        key = norm.op, norm.weight, norm.bias
        # without any tensor the size of a batch norm is not known
        if key not in known or len(known[key][0]) <= norm.positions.max():
            beta, gamma = moments_of(norm, weights)
            known[key] = beta.double().numpy(), gamma.double().numpy()
        betas.append(known[key][0][norm.positions.T])
        gammas.append(known[key][1][norm.positions.T])
    return np.concatenate(betas), np.concatenate(gammas)


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
