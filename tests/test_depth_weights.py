"""How much the depth of a layer counts in the allocation: a search on held-out images, and what it does to widths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.criteria.allocation import with_weights
from slimilar.errors import UnreachableBudget
from slimilar.pipeline import automatic
from slimilar.pipeline.candidates import Candidate, HeldOutImages, PlanComparison
from slimilar.pipeline.depth_weights import MOST_TRIED, find_depth_weight, weighted_by_depth
from slimilar.planning.plan import Plan


def chain() -> nn.Sequential:
    torch.manual_seed(3)
    widths = (3, 24, 24, 24, 24, 5)
    blocks = [
        nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        for i, o in pairwise(widths[:-1])
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)).eval()


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return slimilar.analyze(chain(), images(1), criterion="span", calibration=images(48))


def test_equal_weights_change_nothing(plan: Plan) -> None:
    for weight in (1.0, 3.0):
        same = with_weights(plan, [weight] * len(plan.groups))
        for a, b in zip(plan.orders, same.orders, strict=True):
            assert np.array_equal(a.removed, b.removed)
            assert np.allclose(a.heights, b.heights)
    assert plan.at(flops=0.5, round_to=1).kept == weighted_by_depth(plan, 0).at(flops=0.5, round_to=1).kept


@pytest.mark.parametrize("g", range(4))
def test_a_layer_that_counts_more_keeps_more_at_the_same_cost(plan: Plan, g: int) -> None:
    name = plan.groups[g].name
    kept = [
        with_weights(plan, [w if i == g else 1.0 for i in range(len(plan.groups))])
        .at(flops=0.5, round_to=1)
        .widths[name]
        for w in (0.05, 1.0, 20.0)
    ]
    assert kept[0] <= kept[1] <= kept[2]
    assert kept[0] < kept[2]


def test_weights_by_depth_move_channels_along_the_network(plan: Plan) -> None:
    early, late = (weighted_by_depth(plan, t).at(flops=0.5, round_to=1).widths for t in (-3, 3))
    first, last = plan.groups[0].name, plan.groups[-1].name
    assert early[first] > late[first]
    assert early[last] < late[last]


@pytest.mark.parametrize("best", [-3, -1, 0, 1, 2, 3])
def test_the_search_finds_the_best_exponent_that_counts_later_layers_more(best: int) -> None:
    tried: list[float] = []

    def gaps(exponent: float) -> Tensor:
        tried.append(exponent)
        return 1 + 0.1 * (exponent - 1.1 * best) ** 2 + torch.tensor([0.01, -0.01, 0.02, -0.02]) * exponent

    found = find_depth_weight(gaps)
    assert found.exponent == max(best, 0)
    assert len(tried) == len(set(tried)) <= MOST_TRIED
    assert found.after <= found.before


def test_what_is_within_noise_is_not_taken() -> None:
    noise = torch.tensor([0.5, -0.4, 0.3, -0.45])
    gaps = [lambda t: 1 - 0.01 * t + noise * t, lambda t: torch.tensor([1.0 - 0.1 * t])]
    for found in gaps:  # one image proves nothing
        assert find_depth_weight(found).exponent == 0


def test_what_surely_loses_ends_the_search() -> None:
    tried: list[float] = []

    def gaps(exponent: float) -> Tensor:
        tried.append(exponent)
        return torch.tensor([1.0, 2.0]) + exponent * exponent

    assert find_depth_weight(gaps).exponent == 0
    assert tried == [0, 2]


@pytest.mark.parametrize(("reach", "chosen"), [(0, 0), (1, 0), (2, 2), (3, 3)])
def test_a_weight_that_cannot_reach_the_budget_is_not_taken(reach: int, chosen: int) -> None:
    def gaps(exponent: float) -> Tensor:
        if exponent > reach:
            raise UnreachableBudget("too far")
        return 1 - 0.1 * exponent + torch.tensor([0.001, -0.001])

    assert find_depth_weight(gaps).exponent == chosen


@pytest.mark.parametrize(
    ("best", "told"), [(3, "later layers counted"), (1, "later layers counted"), (0, None)]
)
def test_prune_takes_the_weight_that_held_out_images_choose(
    best: int, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, given = chain(), images(64)
    scanned = slimilar.analyze(net, given[:1], criterion="span", calibration=given)
    at = {t: weighted_by_depth(scanned, t).at(flops=0.5, round_to=1).widths for t in range(-3, 4)}

    def gaps(_: HeldOutImages, candidate: Candidate) -> Tensor:
        exponent = next(t for t in at if at[t] == candidate.cut.widths)
        return 1 + 0.1 * (exponent - 1.1 * best) ** 2 + torch.tensor([0.001, -0.001]) * exponent

    monkeypatch.setattr(HeldOutImages, "gaps", gaps)
    monkeypatch.setattr(automatic, "compare", lambda *_: PlanComparison("span", {"span": 0.1}))
    result = slimilar.prune(net, given[:1], flops=0.5, round_to=1, calibration=given, verify=False)
    assert result.cut.widths == at[best]
    assert any(told in n for n in result.notes) if told else not any("counted" in n for n in result.notes)


def test_held_out_images_decide_in_a_real_run() -> None:
    """Whatever weight is chosen, the budget is met closely, and at most one is told."""
    net, given = chain(), images(64)
    result = slimilar.prune(net, given[:1], flops=0.5, round_to=1, calibration=given)
    told = [note for note in result.notes if "layers counted" in note]
    assert 0.47 * result.cut.before.flops <= result.cut.cost.flops <= 0.5 * result.cut.before.flops
    assert len(told) <= 1
