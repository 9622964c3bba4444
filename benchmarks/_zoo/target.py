"""How far every architecture is cut."""

from __future__ import annotations

from slimilar.errors import UnreachableBudget
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan

TARGET = 0.6  # of the FLOPs, where it can be reached


def to_target(plan: Plan) -> Cut:
    """Return the cut at the FLOPs aimed at, or the deepest there is."""
    try:
        return plan.at(flops=TARGET, round_to=1)
    except UnreachableBudget:
        return plan.at(threshold=1.0, round_to=1)
