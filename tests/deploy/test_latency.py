"""Measured time: the statistics, the order of runs, and budgets that are met."""

from __future__ import annotations

import time

import numpy as np
import pytest

import slimilar
from helpers.small_networks import VGG, Mobile, images, trained
from slimilar.deploy import latency
from slimilar.deploy.latency import Timings, measure, median, timer
from slimilar.deploy.runtimes import ENGINES
from slimilar.errors import InvalidInput


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


def test_the_timer_compares_a_cut_with_the_original(monkeypatch):
    """With a clock that counts multiply-adds, so that no busy machine decides on this test."""
    model = trained(VGG(classes=5, width=0.25))
    plan = slimilar.analyze(model, images(1))

    def clock(candidates, **_):
        macs = [slimilar.count(run, images(1)).macs for run in candidates.values()]
        return Timings(tuple(candidates), np.tile(np.array(macs, float), (5, 1)))

    monkeypatch.setattr(latency, "measure", clock)
    monkeypatch.setattr(latency, "layer_times", lambda *_: None)
    monkeypatch.setitem(ENGINES, "pytorch", lambda model, example: model)
    cut = plan.at(flops=0.5)
    found = timer(model, images(1), plan.structure)(cut)
    assert (found.before.value, found.after.value) == (plan.before.macs, cut.macs)
    assert found.ratio.value == cut.macs / plan.before.macs
    result = slimilar.prune(model, images(1), latency=0.5, round_to=1)
    assert 0.45 * plan.before.macs < result.cut.macs <= 0.5 * plan.before.macs
    assert result.latency is not None
    assert result.latency.ratio.value <= 0.5


def test_the_runtime_is_checked_before_any_work():
    with pytest.raises(InvalidInput, match="runtime must be one of pytorch"):
        slimilar.prune(trained(Mobile()), images(1), latency=0.5, runtime="tpu")
