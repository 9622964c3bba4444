"""The state in which a page opens: the threshold, rounding and overrides that give a cut's widths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slimilar.errors import UnreachableBudget
from slimilar.plan import Cut, Plan

_ROUNDINGS = (1, 8, 16, 4, 32, 2)


@dataclass(frozen=True)
class State:
    """One way to use the controls of the page."""

    threshold: float
    round_to: int = 1
    thresholds: dict[str, float] = field(default_factory=dict)


def opening(plan: Plan, cut: Cut | None) -> State:
    """Return the state that shows a cut; without one, half the FLOPs, or as little as can be reached."""
    if cut is not None:
        return state_of(plan, cut)
    if not plan.groups:
        return State(0.0)
    try:
        return State(plan.at(flops=0.5).threshold)
    except UnreachableBudget:
        return State(1.0)


def state_of(plan: Plan, cut: Cut) -> State:
    """Return a state of the page with exactly a cut's widths, with as few overrides as there can be."""
    states = [_with_overrides(plan, cut, round_to) for round_to in _ROUNDINGS]
    return min(states, key=lambda state: len(state.thresholds))


def _with_overrides(plan: Plan, cut: Cut, round_to: int) -> State:
    plain = plan.at(cut.threshold, round_to=round_to).widths
    own = {}
    for group, order in zip(plan.groups, plan.orders, strict=True):
        steps = group.width - cut.widths[group.name]
        if plain[group.name] != cut.widths[group.name]:
            # Just above the height of the last step taken: that step is made, and with it all of equal height.
            own[group.name] = float(np.nextafter(order.heights[steps - 1], 2)) if steps else 0.0
    return State(cut.threshold, round_to, own)
