"""The initial state of the page: threshold, rounding and overrides that give the widths of a cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slimilar.errors import UnreachableBudget
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import RoundTo, roundings
from slimilar.planning.target import PruningTarget


@dataclass(frozen=True)
class State:
    """The settings of the controls of the page."""

    threshold: float
    round_to: RoundTo = "auto"
    thresholds: dict[str, float] = field(default_factory=dict)


def opening(plan: Plan, cut: Cut | None) -> State:
    """Return the state that shows a cut; by default half the FLOPs, or the smallest reachable cost."""
    if cut is not None:
        return state_of(plan, cut)
    if not plan.groups:
        return State(0.0)
    try:
        return State(plan.threshold_within(PruningTarget("flops", 0.5)))
    except UnreachableBudget:
        return State(1.0)


def state_of(plan: Plan, cut: Cut) -> State:
    """Return a state with exactly the widths of a cut and the fewest overrides."""
    full = np.array([group.width for group in plan.groups], np.int64)
    wanted = np.array([cut.widths[group.name] for group in plan.groups], np.int64)
    plain = np.array(list(plan.at(cut.threshold, round_to=1).widths.values()), np.int64)

    def missed(round_to: RoundTo) -> NDArray[np.bool_]:
        multiples = np.array([roundings(round_to)[0].of(group) for group in plan.groups], np.int64)
        rounded = np.minimum(full, -(-plain // multiples) * multiples)
        found: NDArray[np.bool_] = np.not_equal(rounded, wanted)
        return found

    choices: list[RoundTo] = ["auto", *range(1, max(full, default=1) + 1)]
    round_to = min(choices, key=lambda n: int(missed(n).sum()))
    own = {}
    for g in np.flatnonzero(missed(round_to)):
        steps = int(full[g] - wanted[g])
        # Just above the height of the last step: that step is included, with all others of equal height.
        own[plan.groups[g].name] = float(np.nextafter(plan.orders[g].heights[steps - 1], 2)) if steps else 0.0
    return State(cut.threshold, round_to, own)
