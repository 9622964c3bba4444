"""Measured time: the statistics, the order of runs, and budgets that are met."""

from __future__ import annotations

import time

import numpy as np
import pytest

import slimilar
from helpers.small_networks import VGG, images, trained
from slimilar.deploy import latency
from slimilar.deploy.latency import Found, Interval, Timings, measure, median, parse_time, within
from slimilar.errors import InvalidInput, UnreachableBudget


def test_the_interval_holds_the_median_in_95_of_100_cases():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        found = median(random.exponential(size=25))
        assert found.low <= found.value <= found.high
        held += found.low <= np.log(2) <= found.high
    assert held >= 950


def test_runs_take_turns_and_every_round_has_all():
    order: list[str] = []
    timings = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0, least=40)
    assert timings.samples.shape == (40, 2)
    rounds = [tuple(order[i : i + 2]) for i in range(2, len(order), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}, "each round has both, in either order"


def test_a_slow_moment_of_the_machine_cancels_in_the_ratio():
    drift = np.linspace(1, 5, 50)
    timings = Timings(("before", "after"), np.stack([10 * drift, 4 * drift], 1))
    found = timings.ratio("after", "before")
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))


def test_progress_rises_to_one():
    told: list[float] = []
    measure({"a": lambda: None}, seconds=0, least=5, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1


def test_sleep_is_measured_in_milliseconds():
    timings = measure({"nap": lambda: time.sleep(0.005)}, seconds=0, least=11)
    assert 5 <= timings.milliseconds("nap").value < 50


@pytest.mark.parametrize(
    ("budget", "ratio", "after", "fits"),
    [(0.5, 0.49, 9, True), ("50%", 0.51, 9, False), ("12ms", 0.9, 11.9, True), ("0.01 s", 0.1, 10.1, False)],
)
def test_budgets_of_time(budget, ratio, after, fits):
    found = Found(None, Interval(20, 20, 20), Interval(after, after, after), Interval(ratio, ratio, ratio))
    assert parse_time(budget)(found) is fits


@pytest.mark.parametrize("budget", ["fast", "", 0, -1, 3, "nan", "12 hours"])
def test_budgets_that_mean_nothing(budget):
    with pytest.raises(InvalidInput, match="latency must be a share"):
        parse_time(budget)


def test_a_budget_finds_the_mildest_cut_that_meets_it(monkeypatch):
    """With a clock that counts multiply-adds, so that a busy machine does not decide on this test."""
    model = trained(VGG(classes=5, width=0.25))
    plan = slimilar.analyze(model, images(1))

    def clock(candidates, **_):
        macs = [slimilar.count(run, images(1)).macs for run in candidates.values()]
        return Timings(tuple(candidates), np.tile(np.array(macs, float), (5, 1)))

    monkeypatch.setattr(latency, "measure", clock)
    monkeypatch.setattr(latency, "pytorch", lambda model, example: model)
    found = within(model, images(1), plan, 0.5)
    assert found.cut.macs <= 0.5 * plan.before.macs
    assert found.cut.macs > 0.45 * plan.before.macs
    assert found.ratio.value == found.cut.macs / plan.before.macs
    with pytest.raises(UnreachableBudget, match="latency must be at least"):
        within(model, images(1), plan, 1e-6)
