r"""The paper's similarity with other distances: after the activation, with correlation, on images, by consumers.

Eq. 4 takes channels before the activation and as independent. What consumers get comes after it, and channels of one
layer are correlated. All four distances are the mean squared difference of two channels; they differ in what is known:

- ``similarity-active``: Gaussians with the batch norm's moments through the activation, independent.
- ``similarity-filters``: the same, with the correlation that the filters suggest, $\rho_{ij} = \pm\cos(w_i, w_j)$.
- ``similarity-images``: Eq. 1 on given images, where the channels are read.
- ``similarity-consumers``: the same, times the smaller of the two channels' kernels in their consumers,
  $\min(\lVert w_i \rVert^2, \lVert w_j \rVert^2)$: the error there if one stands in for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.activations import without_options
from slimilar.calibration.consumers import ConsumerLayer, find_consumers
from slimilar.calibration.gaussian_moments import covariance, moments
from slimilar.criteria.base import CalibrationView, Facts, Weights, free_units, renumber
from slimilar.criteria.similarity import moments_of, spread
from slimilar.graph.activations import plain_name
from slimilar.graph.groups import ChannelGroup
from slimilar.reconstruction.solvers import SampleMoments
from slimilar.similarity.distances import is_uninformative, normalise
from slimilar.similarity.linkage import Linkage, linkage_tree, removal_order
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.precision import exact

Kind = Literal["similarity-active", "similarity-filters", "similarity-images", "similarity-consumers"]
_WHAT = {
    "similarity-active": "Channels with similar statistics after the activation, by batch norm, are clustered.",
    "similarity-filters": "As similarity-active, with the correlation of the filters.",
    "similarity-images": "Channels with similar activations on images (Eq. 1) are clustered.",
    "similarity-consumers": "As similarity-images, weighted by the kernels of the consumers.",
}


@dataclass(frozen=True)
class SimilarityVariant:
    """Clusters by one of the other distances, cut at one threshold as the paper does."""

    name: Kind = "similarity-active"
    linkage: Linkage = "average"

    @property
    def facts(self) -> Facts:
        """What the criterion is and needs."""
        looks = self.name in ("similarity-images", "similarity-consumers")
        return Facts(_WHAT[self.name], needs="images" if looks else "nothing", automatic=True)

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        if self.facts.needs == "images":
            assert weights.calibration is not None, "checked before"
            found = _on_images(groups, weights, weights.calibration, self.name == "similarity-consumers")
        else:
            found = [_by_norms(group, weights, self.name == "similarity-filters") for group in groups]
        return [self._order(g, weights, d) for g, d in zip(groups, found, strict=True)]

    def _order(self, group: ChannelGroup, weights: Weights, distance: Tensor | None) -> RemovalOrder | str:
        if distance is None:
            return "no batch norm, or no consumer: there is no similarity to measure"
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
    names = [plain_name(op) for op, _ in group.through]
    return next((name for name in names if without_options(name)), "identity")


def _correlation(group: ChannelGroup, weights: Weights, scale: Tensor) -> Tensor:
    """Return the cosine of every two filters, turned where the batch norm turns; of one producer only."""
    name = f"{group.producers[0]}.weight"
    kernel = weights.tensors.get(name)
    if len(group.producers) != 1 or kernel is None or kernel.ndim < 2 or len(kernel) != group.width:
        return torch.eye(group.width)
    rows = torch.nn.functional.normalize(kernel.detach().cpu().double().flatten(1), dim=1)
    sign = torch.where(scale < 0, -1.0, 1.0).double()
    return ((rows @ rows.T) * sign[:, None] * sign).clamp(-1, 1)


def _after(activation: str, mean: Tensor, std: Tensor, correlation: Tensor) -> tuple[Tensor, Tensor]:
    return moments(activation, mean, std).mean, covariance(activation, mean, std, correlation)


def _distance(mean: Tensor, spread: Tensor) -> Tensor:
    power = spread.diagonal()
    gap = (mean[:, None] - mean).square() + power[:, None] + power - spread - spread.T
    return gap.clamp_min(0).fill_diagonal_(0)


def _on_images(
    groups: Sequence[ChannelGroup], weights: Weights, calibration: CalibrationView, weighted: bool
) -> list[Tensor | None]:
    """Return Eq. 1 at a consumer of every group that sees all of its units."""
    tensors = {name: t.detach() for name, t in weights.tensors.items()}
    found: list[Tensor | None] = [None] * len(groups)
    consumers = sorted(_consumers(groups, calibration), key=lambda r: r[1].op)
    seen = [SampleMoments(len(places)) for _, _, places in consumers]
    for batch in calibration.batches:
        values, position = replay.start(calibration.program, [batch]), 0
        for summed, (_, consumer, places) in zip(seen, consumers, strict=True):
            with torch.no_grad():
                replay.run(calibration.program, values, tensors, position, consumer.op)
            position = consumer.op
            summed.add(values[consumer.value].movedim(consumer.axis, -1)[..., places].flatten(0, -2))
    for summed, (g, consumer, places) in zip(seen, consumers, strict=True):
        distance = _distance(summed.mean().cpu(), summed.covariance().cpu())
        if weighted:
            kernel = exact(tensors[consumer.weight].movedim(consumer.weight_axis, 0).flatten(1)).cpu()
            size = kernel.square().sum(1)[torch.from_numpy(consumer.weight_index)[places]]
            distance = distance * torch.minimum(size[:, None], size)
        found[g] = distance
    return found


def _consumers(
    groups: Sequence[ChannelGroup], calibration: CalibrationView
) -> Iterator[tuple[int, ConsumerLayer, Tensor]]:
    """Yield each group with its first consumer that sees every unit, and where it sees them."""
    consumers = find_consumers(calibration.trace, calibration.grouping, calibration.program)
    for g, group in enumerate(groups):
        start = calibration.grouping.offsets[list(calibration.grouping.groups).index(group)]
        wanted = np.arange(start, start + group.width)
        for consumer in consumers:
            if np.isin(wanted, consumer.units).all():
                places = [int(np.flatnonzero(consumer.units == u)[0]) for u in wanted]
                yield g, consumer, torch.tensor(places)
                break
