"""The mildest cut within a budget of measured time. All it needs is a plan, and a function that times a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slimilar.errors import Option, UnreachableBudget
from slimilar.planning.budgets import LatencyLimit, check_latency
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget

PROBES = 6  # halvings of the range of FLOPs: finer than time can be measured


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


Timer = Callable[[Cut], MeasuredLatency]


def meets(limit: LatencyLimit, latency: MeasuredLatency) -> bool:
    """Tell whether a measured latency is within a limit."""
    if limit.milliseconds is not None:
        return latency.after.value <= limit.milliseconds
    return limit.share is not None and latency.ratio.value <= limit.share


def cut_within_latency(
    plan: Plan, target: PruningTarget, timer: Timer, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Cut, MeasuredLatency]:
    """Return the mildest cut that runs within a target of time, and what was measured of it.

    FLOPs are halved in on; the timer builds and times each cut. Weights do not matter for that.
    """
    limit = check_latency(target.amount)
    best = plan.cut(replace(target, kind="threshold", amount=1.0))
    measured = timer(best)
    if not meets(limit, measured):
        raise UnreachableBudget(
            Option("latency"),
            f" must be at least {measured.ratio.value:.1%} of the original ({measured.after.value:.3g} ms), the "
            f"smallest this plan reaches here, got {target.amount!r}: ask for more, or allow more to be pruned",
        )
    low, high = best.flops / plan.before.flops, 1.0
    for step in range(PROBES):
        if progress is not None:
            progress("measuring how fast smaller models run", step, PROBES)
        middle = (low + high) / 2
        cut = plan.cut(replace(target, kind="flops", amount=middle))
        found = timer(cut)
        if meets(limit, found):
            best, measured, low = cut, found, middle
        else:
            high = middle
    return best, measured
