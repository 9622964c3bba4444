"""The search for a cut within a budget of time, with a clock that counts multiply-adds."""

from __future__ import annotations

import pytest

import slimilar
from helpers.small_networks import VGG, images, trained
from slimilar.errors import InvalidInput, UnreachableBudget
from slimilar.planning.budgets import check_latency
from slimilar.planning.cut import Cut
from slimilar.planning.latency import PROBES, Interval, MeasuredLatency, cut_within_latency, meets
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


@pytest.mark.parametrize(
    ("budget", "ratio", "after", "fits"),
    [(0.5, 0.49, 9, True), ("50%", 0.51, 9, False), ("12ms", 0.9, 11.9, True), ("0.01 s", 0.1, 10.1, False)],
)
def test_what_meets_a_budget(budget, ratio, after, fits):
    assert meets(check_latency(budget), MeasuredLatency(exactly(20), exactly(after), exactly(ratio))) is fits


@pytest.mark.parametrize("budget", ["fast", "", 0, -1, 3, "nan", "12 hours", True])
def test_budgets_that_mean_nothing(budget):
    with pytest.raises(InvalidInput, match="latency must be a share"):
        check_latency(budget)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return slimilar.analyze(trained(VGG(classes=5, width=0.25)), images(1))


class Clock:
    """Takes a millisecond for a thousand multiply-adds, and counts how often it is asked."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.asked = plan, 0

    def __call__(self, cut: Cut) -> MeasuredLatency:
        self.asked += 1
        before = self.plan.before.macs
        return MeasuredLatency(exactly(before / 1e3), exactly(cut.macs / 1e3), exactly(cut.macs / before))


def test_the_mildest_cut_that_meets_the_budget_is_found(plan):
    clock = Clock(plan)
    cut, found = cut_within_latency(plan, PruningTarget("latency", 0.5), clock)
    assert 0.45 * plan.before.macs < cut.macs <= 0.5 * plan.before.macs
    assert found.ratio.value == cut.macs / plan.before.macs
    assert clock.asked <= PROBES


def test_a_time_is_a_budget_too(plan):
    limit = 0.6 * plan.before.macs / 1e3
    cut, found = cut_within_latency(plan, PruningTarget("latency", f"{limit}ms"), Clock(plan))
    assert found.after.value <= limit
    assert cut.macs > 0.5 * plan.before.macs


def test_rounding_and_overrides_hold(plan):
    name = plan.groups[0].name
    target = PruningTarget("latency", 0.7, round_to=8, thresholds={name: 0.0})
    cut, _ = cut_within_latency(plan, target, Clock(plan))
    assert all(width % 8 == 0 for width in cut.widths.values())
    assert cut.widths[name] == plan.groups[0].width


def test_what_cannot_be_reached_is_said(plan):
    with pytest.raises(UnreachableBudget, match="latency must be at least"):
        cut_within_latency(plan, PruningTarget("latency", 1e-6), Clock(plan))


def test_progress_is_told(plan):
    told = []
    cut_within_latency(
        plan, PruningTarget("latency", 0.9), Clock(plan), progress=lambda *step: told.append(step[1:])
    )
    assert told == [(step, PROBES) for step in range(len(told))]
    assert 1 <= len(told) <= PROBES
