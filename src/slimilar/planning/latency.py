"""The mildest cut within a budget of measured time: an allocation predicts, a timer measures, errors are corrected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slimilar.errors import Option, UnreachableBudget
from slimilar.planning.budgets import LatencyLimit, check_latency
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.planning.time_allocation import allocate_time
from slimilar.planning.time_model import TimeModel

PROBES = 8  # networks that are measured at most
CLOSE = 0.97  # of a budget: near enough to stop
_FIRST = 0.7  # what is tried before a budget in milliseconds can be compared with the original's time


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}..{self.high:.3g})"


@dataclass(frozen=True)
class MeasuredLatency:
    """What was measured of a cut: the milliseconds of the original and of the smaller network, and their ratio."""

    before: Interval
    after: Interval
    ratio: Interval
    where: str = ""  # runtime, batch, threads and hardware


Timer = Callable[[Cut], MeasuredLatency]
Predictor = Callable[
    [float], Cut | None
]  # the cut of a predicted share of the original's time; None out of reach
Progress = Callable[[str, int, int], None]


def used(limit: LatencyLimit, latency: MeasuredLatency) -> float:
    """Return how much of a limit a measured latency uses: 1 is all of it."""
    if limit.milliseconds is not None:
        return latency.after.value / limit.milliseconds
    assert limit.share is not None
    return latency.ratio.value / limit.share


def meets(limit: LatencyLimit, latency: MeasuredLatency) -> bool:
    """Tell whether a measured latency is within a limit."""
    return used(limit, latency) <= 1


def by_flops(plan: Plan, target: PruningTarget) -> Predictor:
    """Return the predictor that takes FLOPs for time, for runtimes that cannot be asked for single layers."""

    def predicted(share: float) -> Cut | None:
        try:
            return plan.cut(replace(target, kind="flops", amount=min(1.0, share)))
        except UnreachableBudget:
            return None

    return predicted


def by_time(plan: Plan, target: PruningTarget, times: TimeModel) -> Predictor:
    """Return the predictor that lets channels leave where a millisecond costs the least damage."""
    overrides = plan.overrides(target.thresholds)
    whole = times.total([0] * len(plan.groups))

    def predicted(share: float) -> Cut | None:
        for rounding in target.roundings[1:] or target.roundings:  # tables know what halved groups take
            found = allocate_time(plan.blocks(rounding, overrides), times, share * whole)
            if found is not None:
                return replace(plan.cut_after(found.threshold, found.steps, rounding), by_threshold=False)
        return None

    return predicted


def cut_within_latency(
    plan: Plan,
    target: PruningTarget,
    timer: Timer,
    predictor: Predictor | None = None,
    progress: Progress | None = None,
) -> tuple[Cut, MeasuredLatency]:
    """Return the mildest cut found that runs within a target of time, and what was measured of it.

    The predictor proposes a cut for a share of the original's time, the timer builds and measures it, and the share is
    corrected by what the prediction was off, until at least 97 % of the budget are used. Weights do not matter here.
    """
    limit = check_latency(target.amount)
    search = _Search(limit, timer, predictor or by_flops(plan, target))
    for step in range(PROBES):
        if progress is not None:
            progress("measuring how fast smaller models run", step, PROBES)
        if search.step():
            break
    if search.best is not None:
        return search.best
    finest = 1 if target.round_to == "auto" else target.round_to
    smallest = plan.cut(replace(target, kind="threshold", amount=1.0, round_to=finest))
    measured = timer(smallest)
    if meets(limit, measured):
        return smallest, measured
    raise UnreachableBudget(
        Option("latency"),
        f" must be at least {measured.ratio.value:.1%} of the original ({measured.after.value:.3g} ms), the "
        f"smallest this plan reaches here, got {target.amount!r}: ask for more, or allow more to be pruned",
    )


class _Search:
    """Predicted shares that were tried, those that met the limit below those that did not."""

    def __init__(self, limit: LatencyLimit, timer: Timer, predictor: Predictor) -> None:
        self.limit, self.timer, self.predictor = limit, timer, predictor
        self.share = _FIRST if limit.share is None else min(1.0, limit.share)
        self.low, self.high = 0.0, 1.0
        self.best: tuple[Cut, MeasuredLatency] | None = None

    def step(self) -> bool:
        """Try a share, and tell whether the search is over."""
        cut = self.predictor(self.share)
        if cut is None:  # out of reach: look above
            self.low = self.share
            self.share = (self.low + self.high) / 2
            return False
        measured = self.timer(cut)
        part = used(self.limit, measured)
        if part <= 1 and (self.best is None or part > used(self.limit, self.best[1])):
            self.best = cut, measured
        if CLOSE <= part <= 1 or (part <= 1 and bool(cut.mask.all())):
            return True
        self.low, self.high = (self.share, self.high) if part <= 1 else (self.low, self.share)
        aim = self.share * (1 + CLOSE) / 2 / part
        self.share = aim if self.low < aim < self.high else (self.low + self.high) / 2
        return self.high - self.low < 1e-3
