"""Criteria that rank channels one by one: magnitudes, batch-norm scales, at random. The same ratio in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slimilar.criteria.base import Facts, Weights, by_share, free_units
from slimilar.criteria.filters import magnitudes
from slimilar.criteria.similarity import spread
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder

Floats = NDArray[np.float64]
Kind = Literal["magnitude-l1", "magnitude-l2", "bn-scale", "random"]
WHAT: dict[Kind, str] = {
    "magnitude-l1": "Filters with the smallest sum of |w| leave, the same share in every layer.",
    "magnitude-l2": "Filters with the smallest norm leave, the same share in every layer.",
    "bn-scale": "Channels with the smallest |gamma| leave, the same share in every layer.",
    "random": "Channels leave at random, the same share in every layer.",
}


@dataclass(frozen=True)
class Ranking:
    """Remove the channels of least importance; a height is the share of the layer that has left by then."""

    name: Kind = "magnitude-l2"
    seed: int = 0

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        random = np.random.default_rng(self.seed)
        return [self._order(turn, group, weights, random) for turn, group in enumerate(groups)]

    @property
    def facts(self) -> Facts:
        """What it is and needs."""
        return Facts(WHAT[self.name])

    def _order(
        self, turn: int, group: ChannelGroup, weights: Weights, random: np.random.Generator
    ) -> RemovalOrder | str:
        if self.name == "bn-scale" and not group.batch_norms:
            return "no batch norm: there is no scale to rank by"
        units = free_units(group)
        return by_share(
            units[np.argsort(self._importance(group, weights, random)[units], kind="stable")], turn
        )

    def _importance(self, group: ChannelGroup, weights: Weights, random: np.random.Generator) -> Floats:
        if self.name == "random":
            return random.random(group.width)
        if self.name == "bn-scale":
            return spread(group, weights).numpy()
        return magnitudes(group, weights, power=1 if self.name == "magnitude-l1" else 2)
