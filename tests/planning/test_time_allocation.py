"""Allocation by time: tables interpolate, and channels leave where a millisecond costs the least damage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from slimilar.pipeline.analysis import plan_from
from slimilar.planning.assemble import Answers
from slimilar.planning.latency import by_time, cut_within_latency
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import Rounding
from slimilar.planning.target import PruningTarget
from slimilar.planning.time_allocation import allocate_time
from slimilar.planning.time_model import TimeModel, TimeTable, timed_layers
from slimilar.similarity.removal_order import RemovalOrder

X = torch.zeros(1, 3, 8, 8)


def plan(damage: tuple[float, float] = (1.0, 1.0), width: int = 32) -> Plan:
    """Two groups of some channels, each step of a group as harmful as the next."""
    net = nn.Sequential(
        nn.Conv2d(3, width, 1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 4, 1),
    ).eval()

    def order(harm: float) -> RemovalOrder:
        steps = width - 1
        heights = np.arange(steps) / width
        return RemovalOrder(np.arange(steps), heights, np.full(steps, -1), np.full(steps, harm))

    return plan_from(net, X, Answers("by hand", {"0": order(damage[0]), "2": order(damage[1])}))


def model(found: Plan, price: dict[str, float]) -> TimeModel:
    """A layer takes its price for each of its products of widths."""
    layers, tables = timed_layers(found), {}
    for layer in layers:
        i, o = (np.linspace(0, n, 5) for n in (layer.shape.inputs, layer.shape.outputs))
        tables[layer.shape] = TimeTable(i, o, price[layer.module] * np.outer(i, o))
    return TimeModel(found, layers, tables)


def test_layers_know_their_widths_and_what_decides_on_their_time():
    layers = timed_layers(plan(), batch=4)
    assert [(x.module, x.shape.inputs, x.shape.outputs) for x in layers] == [
        ("0", 3, 32), ("2", 32, 32), ("4", 32, 4),
    ]  # fmt: skip
    assert layers[1].shape.kernel == (3, 3)
    assert layers[1].shape.size == (4, 8, 8)
    assert layers[1].shape.padding == (1, 1)


def test_the_total_follows_the_widths():
    times = model(plan(), {"0": 1.0, "2": 2.0, "4": 3.0})
    assert times.total([0, 0]) == pytest.approx(3 * 32 + 2 * 32 * 32 + 3 * 32 * 4)
    assert times.total([16, 8]) == pytest.approx(3 * 16 + 2 * 16 * 24 + 3 * 24 * 4)


@pytest.mark.parametrize(
    ("price", "shrinks"), [({"0": 50.0, "2": 0.0, "4": 1.0}, "0"), ({"0": 1.0, "2": 0.0, "4": 50.0}, "2")]
)
def test_channels_leave_where_time_is_spent(price, shrinks):
    """FLOPs would choose otherwise: the layer between, which costs the most of them, takes no time here."""
    found = plan()
    times = model(found, price)
    cut = by_time(found, PruningTarget("latency", 0.6, round_to=8), times)(0.6)
    assert cut is not None
    assert cut.widths[shrinks] < 32
    assert cut.widths[{"0": "2", "2": "0"}[shrinks]] == 32


def test_its_threshold_is_just_above_all_that_leaves():
    found = plan()
    cut = by_time(
        found, PruningTarget("latency", 0.6, round_to=8), model(found, {"0": 1.0, "2": 1.0, "4": 1.0})
    )(0.6)
    assert cut is not None
    assert not cut.by_threshold
    heights = [removal.order.heights[: removal.steps] for removal in cut.removals.values()]
    assert np.nextafter(np.concatenate(heights).max(), 2) == cut.threshold


def test_damage_counts_as_much_as_time():
    """One layer between two groups: removing from either saves the same, so the less harmful group shrinks."""
    found = plan(damage=(5.0, 1.0))
    cut = by_time(
        found, PruningTarget("latency", 0.5, round_to=8), model(found, {"0": 0.0, "2": 1.0, "4": 0.0})
    )(0.5)
    assert cut is not None
    assert (cut.widths["0"], cut.widths["2"]) == (32, 16)


def test_plateaus_are_crossed():
    """A table in which half the channels take as long as all: one block alone saves nothing."""
    found = plan()
    layers = timed_layers(found)
    flat = TimeTable(np.array([32.0]), np.array([16.0, 17.0, 32.0]), np.array([[1.0, 10.0, 10.0]]))
    rest = TimeTable(np.array([1.0]), np.array([1.0]), np.array([[0.0]]))
    times = TimeModel(found, layers, {layers[0].shape: rest, layers[1].shape: flat, layers[2].shape: rest})
    chosen = allocate_time(found.blocks(Rounding(8), {}), times, 5.0)
    assert chosen is not None
    assert chosen.steps == (0, 16)


class Block(nn.Module):
    """A residual branch of two inner groups, and another of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        for name in "ab":
            inner = (
                nn.Conv2d(8, 32, 1),
                nn.ReLU(),
                nn.Conv2d(32, 32, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(32, 8, 1),
            )
            setattr(self, name, nn.Sequential(*inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.a(x)
        return self.head(x + self.b(x))


@pytest.mark.parametrize(("min_channels", "branch"), [(0, 0), (1, 16)])
def test_a_branch_goes_whole_where_its_channels_save_no_time(min_channels, branch):
    """As depthwise layers do: half the channels take nearly as long as all. Branch a matters less than b."""

    def order(harm: float) -> RemovalOrder:
        return RemovalOrder(np.arange(32), np.arange(32) / 32, np.full(32, -1), np.full(32, harm))

    orders = {name: order(harm) for name, harm in {"a.0": 1.0, "a.2": 1.0, "b.0": 9.0, "b.2": 9.0}.items()}
    found = plan_from(Block().eval(), X, Answers("by hand", orders), min_channels=min_channels)
    layers, tables = timed_layers(found), {}
    for layer in layers:
        i, o = (np.array([1.0, n]) for n in (layer.shape.inputs, layer.shape.outputs))
        tables[layer.shape] = TimeTable(i, o, np.array([[0.9, 0.95], [0.95, 1.0]]))
    times = TimeModel(found, layers, tables)
    share = 0.75 if min_channels == 0 else 0.99
    cut = by_time(found, PruningTarget("latency", share, round_to=16), times)(share)
    assert cut is not None
    assert cut.widths["a.2"] == branch
    assert cut.widths["b.0"] == cut.widths["b.2"] == 32
    if min_channels == 0:
        assert cut.widths["a.0"] == 0, "what only the branch reads goes with it"
        assert times.total([0, 32, 0, 0]) == pytest.approx(5.0), "three of eight layers less"


def test_what_is_out_of_reach_is_none():
    found = plan()
    assert (
        allocate_time(found.blocks(Rounding(16), {}), model(found, {"0": 1.0, "2": 1.0, "4": 1.0}), 1e-3)
        is None
    )


def test_a_wrong_prediction_is_corrected_by_measuring():
    """The clock counts multiply-adds; the tables believe in another layer. The budget is met within 3 %."""
    from slimilar.planning.latency import Interval, MeasuredLatency

    found = plan(width=128)
    predictor = by_time(
        found, PruningTarget("latency", 0.5, round_to=1), model(found, {"0": 9.0, "2": 1.0, "4": 9.0})
    )

    def clock(cut):
        share = cut.macs / found.before.macs
        return MeasuredLatency(
            Interval(1, 1, 1), Interval(share, share, share), Interval(share, share, share)
        )

    target = PruningTarget("latency", 0.5, round_to=1)
    _, measured = cut_within_latency(found, target, clock, predictor)
    assert 0.97 * 0.5 <= measured.ratio.value <= 0.5
