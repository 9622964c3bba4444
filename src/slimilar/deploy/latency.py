"""Measured time: runs of all candidates in turn, medians with confidence intervals, and budgets of time.

A machine that is slow for a moment is slow for every candidate of that round, so ratios are taken round by round.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from slimilar.deploy.runtimes import pytorch
from slimilar.errors import InvalidInput, UnreachableBudget
from slimilar.planning.plan import Cut, Plan
from slimilar.surgery.rewrite import operate, surgery
from slimilar.utils.pytree import Example

Run = Callable[[], object]
PROBES = 6  # halvings of the range of FLOPs: finer than time can be measured


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}..{self.high:.3g})"


@dataclass(frozen=True, eq=False)
class Timings:
    """Milliseconds of every round (rows) of every candidate (columns)."""

    names: tuple[str, ...]
    samples: NDArray[np.float64]

    def milliseconds(self, name: str) -> Interval:
        """Return how long a candidate takes."""
        return median(self.samples[:, self.names.index(name)])

    def ratio(self, after: str, before: str) -> Interval:
        """Return the time of one candidate as a share of another's, compared round by round."""
        columns = [self.samples[:, self.names.index(name)] for name in (after, before)]
        return median(columns[0] / columns[1])


def median(samples: NDArray[np.float64]) -> Interval:
    """Return the median and its 95 % interval by order statistics, which holds for any distribution.

    >>> median(np.arange(101.0))
    Interval(value=50.0, low=40.0, high=60.0)
    """
    ordered = np.sort(samples)
    n = len(ordered)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = math.floor(n / 2 - reach), math.ceil(n / 2 + reach) - 1
    return Interval(float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)]))


def measure(
    candidates: Mapping[str, Run],
    *,
    seconds: float = 2.0,
    least: int = 11,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Timings:
    """Run all candidates in turn, in a random order each round, for so many seconds and at least so many rounds."""
    names, random = tuple(candidates), np.random.default_rng(seed)
    for name in names:  # the first run of a candidate makes its memory and picks its kernels
        candidates[name]()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or len(rounds) < least:
        found = dict.fromkeys(names, 0.0)
        for i in random.permutation(len(names)).tolist():
            start = time.perf_counter()
            candidates[names[i]]()
            found[names[i]] = 1000 * (time.perf_counter() - start)
        rounds.append([found[name] for name in names])
        if progress is not None:
            progress(min(1.0, spent / max(seconds, 1e-9), len(rounds) / least))
    return Timings(names, np.array(rounds))


# --- budgets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Found:
    """The cut that meets a budget of time, and what was measured for it."""

    cut: Cut
    before: Interval  # milliseconds
    after: Interval
    ratio: Interval


def within(
    model: nn.Module,
    example: Example,
    plan: Plan,
    budget: float | str,
    *,
    round_to: int = 1,
    thresholds: Mapping[str, float] | None = None,
    seconds: float = 1.0,
    progress: Callable[[float], None] | None = None,
) -> Found:
    """Return the mildest cut that runs within a budget of measured time: a share (0.5) or a time ("12ms").

    FLOPs are halved in on, each cut is built and timed against the original; the weights do not matter for that.
    """
    fits = parse_time(budget)
    options: dict[str, object] = {"round_to": round_to, "thresholds": thresholds}
    original = pytorch(model, example)

    def probe(cut: Cut) -> Found:
        small = operate(model, surgery(plan.structure.trace, plan.structure.grouping, cut.mask))
        timings = measure({"before": original, "after": pytorch(small, example)}, seconds=seconds)
        before, after = timings.milliseconds("before"), timings.milliseconds("after")
        return Found(cut, before, after, timings.ratio("after", "before"))

    best = probe(plan.at(1.0, **options))  # type: ignore[arg-type]
    if not fits(best):
        raise UnreachableBudget(
            f"latency must be at least {best.ratio.value:.1%} of the original ({best.after.value:.3g} ms), the "
            f"smallest this plan reaches here, got {budget!r}: ask for more, or allow more to be pruned"
        )
    low, high = best.cut.flops / plan.before.flops, 1.0
    for step in range(PROBES):
        if progress is not None:
            progress(step / PROBES)
        middle = (low + high) / 2
        found = probe(plan.at(flops=middle, **options))  # type: ignore[arg-type]
        if fits(found):
            best, low = found, middle
        else:
            high = middle
    return best


def parse_time(budget: float | str) -> Callable[[Found], bool]:
    """Return the test that a budget of time stands for."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(ms|s|%)?\s*", str(budget))
    number = float(match[1]) if match else 0.0
    unit = match[2] if match else None
    if number <= 0 or (unit is None and number > 1):
        raise InvalidInput(
            f'latency must be a share such as 0.5 or "50%", or a time such as "12ms", got {budget!r}'
        )
    if unit in ("ms", "s"):
        limit = number * (1000 if unit == "s" else 1)
        return lambda found: found.after.value <= limit
    share = number / 100 if unit == "%" else number
    return lambda found: found.ratio.value <= share
