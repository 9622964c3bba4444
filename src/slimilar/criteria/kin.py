r"""The paper's similarity with other distances: after the activation, with correlation, on pictures, as readers hear.

Eq. 4 takes channels before the activation and as independent. What readers get comes after it, and channels of one
layer are correlated. All four distances are the mean squared difference of two channels; they differ in what is known:

- ``similarity-active``: Gaussians with the batch norm's moments through the activation, independent.
- ``similarity-filters``: the same, with the correlation that the filters suggest, $\rho_{ij} = \pm\cos(w_i, w_j)$.
- ``similarity-pictures``: Eq. 1 on given pictures, where the channels are read.
- ``similarity-readers``: the same, times the smaller of the two channels' kernels in their readers,
  $\min(\lVert w_i \rVert^2, \lVert w_j \rVert^2)$: the error there if one stands in for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slimilar import replay
from slimilar.criteria.base import Facts, Sight, Weights, free_units, renumber
from slimilar.criteria.similarity import moments_of, spread
from slimilar.groups import ChannelGroup
from slimilar.moments import covariance, moments
from slimilar.similarity import (
    Linkage,
    RemovalOrder,
    is_uninformative,
    linkage_tree,
    normalise,
    removal_order,
)
from slimilar.substitute.sites import Site, find_sites
from slimilar.substitute.solve import Moments

Kind = Literal["similarity-active", "similarity-filters", "similarity-pictures", "similarity-readers"]
_PLAIN = ("relu", "silu", "gelu", "hardswish", "sigmoid", "tanh")  # activations without options that matter
_WHAT = {
    "similarity-active": "Channels that are alike after the activation, by batch norm, are clustered.",
    "similarity-filters": "As similarity-active, with the correlation that the filters suggest.",
    "similarity-pictures": "Channels that are alike on pictures (Eq. 1) are clustered.",
    "similarity-readers": "As similarity-pictures, weighted by the kernels that read the channels.",
}


@dataclass(frozen=True)
class Kin:
    """Clusters by one of the other distances, cut at one threshold as the paper does."""

    name: Kind = "similarity-active"
    linkage: Linkage = "average"

    @property
    def facts(self) -> Facts:
        """What the criterion is and needs."""
        looks = self.name in ("similarity-pictures", "similarity-readers")
        return Facts(_WHAT[self.name], needs="pictures" if looks else "nothing", automatic=True)

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        if self.facts.needs == "pictures":
            assert weights.sight is not None, "checked before"
            found = _on_pictures(groups, weights, weights.sight, self.name == "similarity-readers")
        else:
            found = [_by_norms(group, weights, self.name == "similarity-filters") for group in groups]
        return [self._order(g, weights, d) for g, d in zip(groups, found, strict=True)]

    def _order(self, group: ChannelGroup, weights: Weights, distance: Tensor | None) -> RemovalOrder | str:
        if distance is None:
            return "no batch norm, or nobody reads: there is no similarity to measure"
        units = free_units(group)
        pairs = distance[np.ix_(units, units)]
        if len(units) < 2 or is_uninformative(pairs):
            return "all channels are equally far apart"
        tree = linkage_tree(normalise(pairs), self.linkage)
        return renumber(removal_order(tree, spread(group, weights)[units]), units)


def _by_norms(group: ChannelGroup, weights: Weights, correlated: bool) -> Tensor | None:
    """Return the distance from batch norms alone, summed over those that normalise the group."""
    total = None
    for norm in group.batch_norms:
        beta, gamma = moments_of(norm, weights)
        for place in torch.from_numpy(norm.positions).T:
            mean, scale = beta[place].double(), gamma[place].double()
            correlation = _correlation(group, weights, scale) if correlated else torch.eye(group.width)
            part = _distance(*_after(_activation(group), mean, scale.abs(), correlation.double()))
            total = part if total is None else total + part
    return total


def _activation(group: ChannelGroup) -> str:
    names = [op.removeprefix("aten.").rstrip("_") for op, _ in group.through]
    return next((name for name in names if name in _PLAIN), "identity")


def _correlation(group: ChannelGroup, weights: Weights, scale: Tensor) -> Tensor:
    """Return the cosine of every two filters, turned where the batch norm turns; of one writer only."""
    name = f"{group.writers[0]}.weight"
    kernel = weights.tensors.get(name)
    if len(group.writers) != 1 or kernel is None or kernel.ndim < 2 or len(kernel) != group.width:
        return torch.eye(group.width)
    rows = torch.nn.functional.normalize(kernel.detach().double().flatten(1), dim=1)
    sign = torch.where(scale < 0, -1.0, 1.0).double()
    return ((rows @ rows.T) * sign[:, None] * sign).clamp(-1, 1)


def _after(activation: str, mean: Tensor, std: Tensor, correlation: Tensor) -> tuple[Tensor, Tensor]:
    return moments(activation, mean, std).mean, covariance(activation, mean, std, correlation)


def _distance(mean: Tensor, spread: Tensor) -> Tensor:
    power = spread.diagonal()
    gap = (mean[:, None] - mean).square() + power[:, None] + power - spread - spread.T
    return gap.clamp_min(0).fill_diagonal_(0)


def _on_pictures(
    groups: Sequence[ChannelGroup], weights: Weights, sight: Sight, heard: bool
) -> list[Tensor | None]:
    """Return Eq. 1 at a reader of every group that sees all of its units."""
    tensors = {name: t.detach() for name, t in weights.tensors.items()}
    found: list[Tensor | None] = [None] * len(groups)
    readers = sorted(_readers(groups, sight), key=lambda r: r[1].op)
    seen = [Moments(len(places)) for _, _, places in readers]
    for batch in sight.batches:
        values, position = replay.start(sight.tape, [batch]), 0
        for summed, (_, site, places) in zip(seen, readers, strict=True):
            with torch.no_grad():
                replay.run(sight.tape, values, tensors, position, site.op)
            position = site.op
            summed.add(values[site.value].movedim(site.axis, -1)[..., places].flatten(0, -2))
    for summed, (g, site, places) in zip(seen, readers, strict=True):
        distance = _distance(summed.mean(), summed.covariance())
        if heard:
            kernel = tensors[site.weight].movedim(site.weight_axis, 0).flatten(1).double()
            size = kernel.square().sum(1)[torch.from_numpy(site.weight_index)[places]]
            distance = distance * torch.minimum(size[:, None], size)
        found[g] = distance
    return found


def _readers(groups: Sequence[ChannelGroup], sight: Sight) -> Iterator[tuple[int, Site, Tensor]]:
    """Yield each group with its first reader that sees every unit, and where it sees them."""
    sites = find_sites(sight.trace, sight.grouping, sight.tape)
    for g, group in enumerate(groups):
        start = sight.grouping.offsets[list(sight.grouping.groups).index(group)]
        wanted = np.arange(start, start + group.width)
        for site in sites:
            if np.isin(wanted, site.units).all():
                places = [int(np.flatnonzero(site.units == u)[0]) for u in wanted]
                yield g, site, torch.tensor(places)
                break
