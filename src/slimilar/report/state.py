"""The state in which a page opens: the threshold, rounding and overrides that give a cut's widths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slimilar.errors import UnreachableBudget
from slimilar.planning.plan import Cut, Plan


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
    full = np.array([group.width for group in plan.groups], np.int64)
    wanted = np.array([cut.widths[group.name] for group in plan.groups], np.int64)
    plain = np.array(list(plan.at(cut.threshold).widths.values()), np.int64)

    def missed(round_to: int) -> NDArray[np.bool_]:
        rounded = np.minimum(full, -(-plain // round_to) * round_to)
        return np.not_equal(rounded, wanted, dtype=np.bool_)

    round_to = min(range(1, max(full, default=1) + 1), key=lambda n: int(missed(n).sum()))
    own = {}
    for g in np.flatnonzero(missed(round_to)):
        steps = int(full[g] - wanted[g])
        # Just above the height of the last step taken: that step is made, and with it all of equal height.
        own[plan.groups[g].name] = float(np.nextafter(plan.orders[g].heights[steps - 1], 2)) if steps else 0.0
    return State(cut.threshold, round_to, own)
