"""Plans: cuts against a count by hand, budgets that are met as closely as steps allow, plain data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import slimilar
from helpers.small_networks import Mobile, images, trained
from slimilar.errors import InvalidInput, NothingToPrune, UnreachableBudget
from slimilar.graph.groups import Frozen
from slimilar.graph.reasons import FreezeKind
from slimilar.pipeline.analysis import plan_from
from slimilar.planning.assemble import Answers, nothing_to_prune
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.similarity.removal_order import RemovalOrder

X = torch.zeros(1, 3, 8, 8)


def chain() -> nn.Module:
    """Three layers of which two can be pruned: 6 and 4 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).eval()


def order(removed: list[int], heights: list[float], representative: list[int] | None = None) -> RemovalOrder:
    return RemovalOrder(removed, heights, representative or [-1] * len(removed))


@pytest.fixture
def plan() -> Plan:
    orders = {
        "0": order([5, 1, 3, 0, 2], [0.1, 0.2, 0.3, 0.6, 0.9], [1, 3, 0, 2, 4]),
        "2": order([3, 2, 1], [0.15, 0.25, 0.5]),
    }
    return plan_from(chain(), X, Answers("by hand", orders))


# --- cuts -------------------------------------------------------------------------------------------------------------


def test_a_threshold_takes_the_steps_below_it(plan):
    cut = plan.at(0.3)
    assert cut.kept == {"0": (0, 2, 3, 4), "2": (0, 1)}
    assert cut.widths == {"0": 4, "2": 2}
    assert (cut.threshold, plan.at(0.0).widths) == (0.3, {"0": 6, "2": 4})


def test_clusters_follow_the_order(plan):
    clusters = plan.at(0.3).clusters
    assert [(c.representative, c.members) for c in clusters["0"]] == [
        (0, (0,)),
        (2, (2,)),
        (3, (1, 3, 5)),
        (4, (4,)),
    ]
    assert [c.members for c in clusters["2"]] == [(0,), (1,)], "removed with nobody to represent them"


def test_the_cost_of_a_cut_is_that_of_the_model(plan):
    for threshold in (0.0, 0.16, 0.4, 1.0):
        cut = plan.at(threshold)
        made = slimilar.apply(chain(), X, plan, cut, reconstruction="none").model
        assert cut.cost == slimilar.count(made, X)
    assert plan.before == slimilar.count(chain(), X)


def test_a_ratio_takes_a_share_of_every_group(plan):
    assert plan.at(ratio=0.5).widths == {"0": 3, "2": 2}
    assert plan.at(ratio=0.34).widths == {"0": 4, "2": 3}, "rounded down"
    assert plan.at(ratio=0.5, thresholds={"0": 0.15}).widths == {"0": 5, "2": 2}


def test_a_quantile_takes_a_share_of_all_channels(plan):
    for share in (0.0, 0.1, 0.35, 0.8):
        assert 10 - sum(plan.at(quantile=share).widths.values()) == int(10 * share + 1e-9)


def test_overrides_name_groups(plan):
    assert plan.at(0.3, thresholds={"2": 0.0}).widths == {"0": 4, "2": 4}
    with pytest.raises(InvalidInput, match="group must be one of"):
        plan.at(0.3, thresholds={"3": 0.0})


def test_rounding_undoes_the_last_steps(plan):
    assert plan.at(0.3, round_to=4).widths == {"0": 4, "2": 4}
    assert plan.at(0.16, round_to=4).widths == {"0": 6, "2": 4}, "never wider than before"


def test_every_group_keeps_its_least(plan):
    least = replace(plan, min_channels=3)
    assert least.at(1.0).widths == {"0": 3, "2": 3}
    assert least.at(ratio=0.9).widths == {"0": 3, "2": 3}


def test_a_latency_has_to_be_measured(plan):
    with pytest.raises(InvalidInput, match="latency must be measured on the model"):
        plan.cut(PruningTarget("latency", 0.5))


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flops", "macs", "params"])
@pytest.mark.parametrize("round_to", [1, 2])
def test_a_budget_is_met_at_the_smallest_threshold(plan, kind, round_to):
    thresholds = [0.0, *np.nextafter([0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.6, 0.9], 2)]
    for share in (1.0, 0.8, 0.6, 0.4):
        threshold = plan.threshold_within(PruningTarget(kind, share, round_to))
        by_hand = next(
            found
            for found in (plan.at(t, round_to=round_to) for t in thresholds)
            if getattr(found, kind) <= share * getattr(plan.before, kind)
        )
        assert plan.at(threshold, round_to=round_to).kept == by_hand.kept
        assert round_to > 1 or plan.at(**{kind: share}, round_to=1).kept == by_hand.kept


def test_a_reserve_is_held_back(plan):
    target = PruningTarget("params", plan.before.params)
    assert plan.cut(target).widths == {"0": 6, "2": 4}
    assert plan.cut(replace(target, reserve=1)).params < plan.before.params


def test_a_budget_out_of_reach_says_what_can_be_reached(plan):
    smallest = plan.at(1.0).params
    with pytest.raises(
        UnreachableBudget, match=rf"^params must be at least {smallest + 7} .*, got 5: "
    ) as raised:
        plan.cut(PruningTarget("params", 5, reserve=7))
    assert raised.value.option == "params"


# --- the curve --------------------------------------------------------------------------------------------------------


def test_the_curve_is_every_cut(plan):
    curve = plan.curve()
    assert len(curve) == 9
    for point in curve:
        cut = plan.at(point.threshold)
        assert (point.flops, point.macs, point.params) == (cut.flops, cut.macs, cut.params)
        assert point.widths == cut.widths
    assert all(a.flops >= b.flops for a, b in pairwise(curve))


# --- from answers to a plan -------------------------------------------------------------------------------------------


def test_a_plan_can_be_made_again_of_its_own_orders():
    net = trained(Mobile())
    plan = slimilar.analyze(net, images(1))
    orders = {g.name: o for g, o in zip(plan.groups, plan.orders, strict=True)}
    reasons = {f.name: f.reason for f in plan.frozen}
    again = plan_from(net, images(1), Answers(plan.criterion, {**reasons, **orders}))
    assert [f.name for f in again.frozen] == [f.name for f in plan.frozen]
    assert again.at(flops=0.6).kept == plan.at(flops=0.6).kept


def test_a_group_without_an_order_stays(plan):
    answers = Answers("by hand", {"0": "no reason", "2": plan.orders[1]})
    found = plan_from(chain(), X, answers)
    assert [g.name for g in found.groups] == ["2"]
    assert ("0", "no reason", FreezeKind.CRITERION) in [(f.name, f.reason, f.kind) for f in found.frozen]


def test_equal_heights_are_put_apart(plan):
    tied = {"0": order([0, 1, 2], [0.5, 0.5, 0.5]), "2": order([0, 1], [0.5, 0.5])}
    found = plan_from(chain(), X, Answers("by hand", tied))
    heights = np.concatenate([o.heights for o in found.orders])
    assert len(set(heights.tolist())) == 5
    assert np.abs(heights - 0.5).max() < 1e-10


def test_nothing_to_prune_names_the_most_frequent_reasons():
    error = nothing_to_prune([Frozen(str(i), 4, "excluded", FreezeKind.EXCLUDED) for i in range(5)])
    assert isinstance(error, NothingToPrune)
    assert "(0, 1 and 3 more: excluded)" in str(error)
    assert "weights" not in str(error)
    untrained = nothing_to_prune([Frozen("a", 4, "untrained", FreezeKind.UNTRAINED_NORM)])
    assert "Does the model lack its trained weights?" in str(untrained)
    assert "got none" in str(nothing_to_prune([]))
