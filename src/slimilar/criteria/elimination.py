r"""Remove what the others span, where the output diverges least.

A channel is redundant when the others of its layer can stand in for it. For every group, channels leave one by one
by backward elimination on the covariance of what its consumers see, weighted by their kernels. How far each group may
go is settled at the network's output: for some widths, the group alone is pruned, its consumers make up for it, and
the divergence of the output from the original's is measured. Groups then shrink step by step where a FLOP costs the
least divergence; the height of a step is its place in that sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from slimilar.criteria.allocation import AllocationSteps, allocate
from slimilar.criteria.base import Facts, Weights
from slimilar.criteria.sensitivity import divergence_by_width, scan
from slimilar.graph.groups import ChannelGroup
from slimilar.reconstruction.solvers import Elimination
from slimilar.similarity.removal_order import NO_REPRESENTATIVE, RemovalOrder

_EFFORT = 1.5e12  # FLOPs spent on measuring divergence; fewer images and widths where the network is large


@dataclass(frozen=True)
class Span:
    """Backward elimination, with widths by the divergence measured at the output."""

    name: str = "span"
    effort: float = _EFFORT
    facts: ClassVar[Facts] = Facts(
        "Channels that the others span are removed, in the layers where the network's output changes least.",
        needs="images",
        automatic=True,
        reconstruction="least-squares",
        exchangeable=True,
    )

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        assert weights.calibration is not None  # the facts declare that images are needed
        with torch.no_grad():
            scanned = scan(groups, weights, weights.calibration, self.effort)
            lost = divergence_by_width(scanned, weights.calibration)
        found = allocate(scanned, lost, weights.calibration.costs)
        return [
            _order(scanned.eliminations[g], found[g]) if g in found else "nobody reads these channels"
            for g in range(len(groups))
        ]


def _order(found: Elimination, steps: AllocationSteps) -> RemovalOrder:
    nobody = np.full(len(steps.heights), NO_REPRESENTATIVE)
    return RemovalOrder(found.removed, steps.heights, nobody, steps.damage)
