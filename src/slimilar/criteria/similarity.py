"""The paper's criterion: distance by batch norm (Eq. 4), normalised per layer, clustered, cut at one threshold.

Where a layer has no batch norm, the mean and spread of its channels are measured on images. Without images they are
propagated from the input's, if most layers of the network have no batch norm; else the layer stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration.channel_moments import measured, propagated
from slimilar.calibration.gaussian_moments import MeanAndVariance
from slimilar.criteria.base import Facts, Weights, free_units
from slimilar.graph.groups import BatchNorm, ChannelGroup
from slimilar.graph.reasons import FreezeKind, Reason
from slimilar.graph.records import Write
from slimilar.graph.structure import Structure
from slimilar.planning.assemble import Answer, LazyAnswer
from slimilar.similarity.distances import Floats
from slimilar.similarity.linkage import Linkage
from slimilar.similarity.partial_linkage import PartialLinkage

_Key = tuple[int, str | None, str | None]
_BetaGamma = tuple[Floats, Floats]  # of a batch norm

_SAME = "all channels are equally far apart"
NO_MOMENTS = Reason(
    FreezeKind.NO_BATCH_NORM,
    "no batch norm: there is no similarity to measure without calibration images; pass some",
)
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
        found = self.lazy_orders(groups, weights)
        return [answer.whole() if isinstance(answer, PartialLinkage) else answer for answer in found]

    def lazy_orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[LazyAnswer]:
        """Return the linkage of every group, not yet computed."""
        known: dict[_Key, _BetaGamma] = {}
        bare = _without_norm(groups, weights)
        found = [_statistics(g, weights, known) if g.batch_norms else bare.get(g.name) for g in groups]
        return [self._linkage(group, moments) for group, moments in zip(groups, found, strict=True)]

    def note(self, groups: Sequence[ChannelGroup], weights: Weights) -> str:
        """Return where the moments come from, if not from batch norms alone."""
        bare = [group for group in groups if not group.batch_norms]
        if not bare or (weights.calibration is None and not _propagates(groups, weights)):
            return ""
        layers = f"{len(bare)} of {len(groups)} layers without batch norm"
        if weights.calibration is None:
            return f"moments of {layers} propagated from an input of mean 0 and variance 1"
        return f"moments of {layers} measured on {sum(map(len, weights.calibration.batches))} images"

    def _linkage(self, group: ChannelGroup, moments: _BetaGamma | None) -> LazyAnswer:
        if moments is None:
            return NO_MOMENTS
        units = free_units(group)
        beta, gamma = (moment[:, units] for moment in moments)
        linkage = PartialLinkage(units, beta.T, np.square(gamma).sum(0), np.abs(gamma).sum(0), self.linkage)
        if linkage.is_uninformative:
            return UNTRAINED if group.batch_norms else _SAME
        return linkage


def _propagates(groups: Sequence[ChannelGroup], weights: Weights) -> bool:
    """Tell whether moments are propagated: a few layers without batch norm are left whole instead."""
    bare = sum(not group.batch_norms for group in groups)
    return weights.structure is not None and 2 * bare > len(groups)


def _without_norm(groups: Sequence[ChannelGroup], weights: Weights) -> dict[str, _BetaGamma]:
    """Return mean and standard deviation, of shape (writes, units), of groups without batch norm, by name."""
    bare = [group for group in groups if not group.batch_norms]
    structure, calibration = weights.structure, weights.calibration
    if not bare or structure is None or (calibration is None and not _propagates(groups, weights)):
        return {}
    trace = (
        structure.trace if calibration is None else calibration.trace
    )  # operators may differ by batch size
    wanted = {name for group in bare for name in group.producers}
    writes = [w for w in trace.writes if trace.ops[w.op].module in wanted]
    if calibration is None:
        known = propagated(trace, weights.tensors)
    else:
        known = measured(calibration.program, weights.tensors, calibration.batches, writes)
    found = {group.name: _by_unit(group, structure, writes, known) for group in bare}
    return {name: moments for name, moments in found.items() if moments is not None}


def _by_unit(
    group: ChannelGroup, structure: Structure, writes: Sequence[Write], known: Mapping[int, MeanAndVariance]
) -> _BetaGamma | None:
    """Return the moments of every unit of a group, in all layers that write it; None if one is not known."""
    start = structure.grouping.offsets[structure.grouping.groups.index(group)]
    means, deviations = [], []
    for write in writes:
        units = structure.grouping.unit_of[write.atoms] - start
        if not set(range(group.width)) <= set(units.tolist()):
            continue  # it writes other channels, or a part
        if write.op not in known:
            return None
        places = [np.flatnonzero(units == u) for u in range(group.width)]
        for nth in range(min(map(len, places))):
            chosen = [int(p[nth]) for p in places]
            means.append(known[write.op].mean.numpy()[chosen])
            deviations.append(known[write.op].var.sqrt().numpy()[chosen])
    return (np.stack(means), np.stack(deviations)) if means else None


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
