"""The initial state of the page: threshold, rounding and overrides that give the widths of a cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slimilar.errors import UnreachableBudget
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import RoundTo, dictated_rounding, rounded_up
from slimilar.planning.target import PruningTarget


@dataclass(frozen=True)
class State:
    """The settings of the controls of the page."""

    threshold: float
    round_to: RoundTo = "auto"
    thresholds: dict[str, float] = field(default_factory=dict)


def opening(plan: Plan, cut: Cut | None) -> State:
    """Return the state that shows a cut; by default half the FLOPs, or the smallest reachable cost."""
    if not plan.groups:
        return State(0.0)
    if cut is not None:
        return state_of(plan, cut)
    try:
        return State(plan.threshold_within(PruningTarget("flops", 0.5)))
    except UnreachableBudget:
        return State(1.0)


def state_of(plan: Plan, cut: Cut) -> State:
    """Return a state with exactly the widths of a cut and the fewest overrides."""
    wanted = [cut.widths[group.name] for group in plan.groups]
    choices: list[RoundTo] = ["auto", cut.round_to, 1, 2, 4, 8, 16, 32]
    found = [base for choice in dict.fromkeys(choices) if (base := _base(plan, cut, choice)) is not None]
    base = min(found, key=lambda base: len(base.others))
    own = {plan.groups[g].name: _own(plan, g, plan.groups[g].width - wanted[g]) for g in base.others}
    return State(base.threshold, base.round_to, own)


@dataclass(frozen=True)
class _Base:
    """A threshold for all groups, and the groups that it does not give their widths."""

    threshold: float
    round_to: RoundTo
    others: tuple[int, ...]


def _base(plan: Plan, cut: Cut, round_to: RoundTo) -> _Base | None:
    """Return the threshold that gives most groups their widths; None where some are no multiples of the rounding."""
    multiples = [dictated_rounding(round_to).of(group) for group in plan.groups]
    wanted = [cut.widths[group.name] for group in plan.groups]
    if any(w % m and w != group.width for w, m, group in zip(wanted, multiples, plan.groups, strict=True)):
        return None
    spans = np.array([_span(plan, g, wanted[g], m) for g, m in enumerate(multiples)]).reshape(-1, 2)
    # The best threshold is where some group begins to have its width; the cut's own one comes first among equals.
    candidates = np.array([*([cut.threshold] if cut.by_threshold else []), *spans[:, 0], 0.0])
    candidates = candidates[candidates <= 1]
    fits = (spans[:, :1] <= candidates) & (candidates <= spans[:, 1:])
    best = int(np.argmax(fits.sum(axis=0)))
    return _Base(float(candidates[best]), round_to, tuple(np.flatnonzero(~fits[:, best]).tolist()))


def _span(plan: Plan, g: int, wanted: int, multiple: int) -> tuple[float, float]:
    """Return the first and the last threshold that give a group its width; (2, 1) if there is none."""
    width, heights = plan.groups[g].width, plan.orders[g].heights
    steps = [n for n in range(plan.limit(g) + 1) if rounded_up(width, n, multiple) == width - wanted]
    if not steps:
        return 2.0, 1.0
    first = float(np.nextafter(heights[steps[0] - 1], 2)) if steps[0] else 0.0
    last = float(heights[steps[-1]]) if steps[-1] < plan.limit(g) else 1.0
    return (first, min(1.0, last)) if first <= min(1.0, last) else (2.0, 1.0)


def _own(plan: Plan, g: int, steps: int) -> float:
    """Return a threshold just above the height of the last step: it is included, with all others of equal height."""
    heights = plan.orders[g].heights[:steps]
    return float(np.nextafter(heights[-1], 2)) if len(heights) else 0.0
