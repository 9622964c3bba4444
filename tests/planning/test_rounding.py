"""Rounding as part of the allocation: never over the budget, never worse than rounding up."""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import slimilar
from slimilar.errors import InvalidInput, SlimilarWarning, UnreachableBudget
from slimilar.planning.rounding import Rounding, StepBlocks, allocate, rounded_up, roundings
from slimilar.utils.torchvision_compat import import_torchvision

MULTIPLES = st.sampled_from([2, 4, 8])


@st.composite
def problems(draw: Any) -> tuple[list[np.ndarray], list[int], list[float], int]:
    """Return heights of each group's steps, widths, prices of a channel, and a multiple."""
    widths = draw(st.lists(st.integers(2, 20), min_size=1, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    heights = [np.sort(random.random(w - 1)) for w in widths]
    return heights, widths, random.uniform(1, 9, len(widths)).tolist(), draw(MULTIPLES)


def chained(widths: list[int], prices: list[float]) -> Any:
    """Return a cost like that of layers in a row: a layer's is the product of its widths."""

    def cost(steps: Any) -> int:
        left = [3, *(w - n for w, n in zip(widths, steps, strict=True))]
        return int(sum(price * a * b for price, (a, b) in zip(prices, pairwise(left), strict=True)))

    return cost


def rounding_up(heights: list[np.ndarray], widths: list[int], multiple: int, cost: Any, limit: float) -> Any:
    """The plain way, as an independent reference: the first threshold whose rounded widths are within the limit."""
    for t in np.append(0.0, np.nextafter(np.unique(np.concatenate(heights)), 2)):
        steps = [rounded_up(w, int((h < t).sum()), multiple) for h, w in zip(heights, widths, strict=True)]
        if cost(steps) <= limit:
            return steps
    return None


def loss(heights: list[np.ndarray], steps: Any) -> float:
    return float(sum(h[:n].sum() for h, n in zip(heights, steps, strict=True)))


@settings(max_examples=200, deadline=None)
@given(problems(), st.floats(0.2, 1.0))
def test_never_over_budget_and_never_worse_than_rounding_up(problem, share):
    heights, widths, prices, multiple = problem
    cost = chained(widths, prices)
    limit = share * cost([0] * len(widths))
    blocks = [StepBlocks.of(h, w, multiple) for h, w in zip(heights, widths, strict=True)]
    found, plain = allocate(blocks, cost, limit), rounding_up(heights, widths, multiple, cost, limit)
    assert (found is None) == (plain is None)
    if found is not None and plain is not None:
        assert cost(found.steps) <= limit
        assert all((w - n) % multiple == 0 or n == 0 for w, n in zip(widths, found.steps, strict=True))
        assert loss(heights, found.steps) <= loss(heights, plain) + 1e-12
        assert found.loss == pytest.approx(loss(heights, found.steps))


@settings(max_examples=100, deadline=None)
@given(problems(), st.floats(0.3, 1.0))
def test_no_block_that_leaves_could_stay(problem, share):
    heights, widths, prices, multiple = problem
    cost = chained(widths, prices)
    limit = share * cost([0] * len(widths))
    blocks = [StepBlocks.of(h, w, multiple) for h, w in zip(heights, widths, strict=True)]
    found = allocate(blocks, cost, limit)
    if found is not None:
        for g, b in enumerate(blocks):
            at = int(np.searchsorted(b.ends, found.steps[g]))
            if at:
                back = [*found.steps[:g], int(b.ends[at - 1]), *found.steps[g + 1 :]]
                assert cost(back) > limit


def test_the_best_of_all_allocations_is_not_far():
    """On small problems all allocations can be tried. The search is greedy, so it is close to the best, on average."""
    random, shares = np.random.default_rng(0), []
    for _ in range(40):
        widths = [16, 16, 16]
        heights = [np.sort(random.random(15)) for _ in widths]
        cost = chained(widths, random.uniform(1, 9, 3).tolist())
        limit = 0.5 * cost([0, 0, 0])
        blocks = [StepBlocks.of(h, w, 4) for h, w in zip(heights, widths, strict=True)]
        found = allocate(blocks, cost, limit)
        assert found is not None
        every = product(*(b.ends.tolist() for b in blocks))
        best = min(loss(heights, steps) for steps in every if cost(steps) <= limit)
        shares.append(found.loss / best)
    assert min(shares) >= 1 - 1e-9
    assert np.mean(shares) < 1.25


# --- what "auto" stands for -----------------------------------------------------------------------------------------


def group(width: int, channels_of_a_unit: int = 1) -> Any:
    norm = SimpleNamespace(positions=np.zeros((width, channels_of_a_unit)))
    return SimpleNamespace(width=width, batch_norms=(norm,))


@pytest.mark.parametrize(
    ("width", "multiple", "halved"),
    [(1, 1, 1), (8, 1, 1), (15, 1, 1), (16, 16, 8), (24, 16, 8), (31, 16, 8), (32, 16, 16), (1280, 16, 16)],
)
def test_auto_is_sixteen_and_next_half_of_it_in_narrow_groups(width, multiple, halved):
    assert [rounding.of(group(width)) for rounding in roundings("auto")[:2]] == [multiple, halved]


def basic_blocks(*widths: int) -> nn.Module:
    """Convolutions of three pixels a side between streams that stay, like those inside the blocks of a ResNet."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for w in widths:
        layers += [
            nn.Conv2d(8, w, 3, padding=1),
            nn.BatchNorm2d(w),
            nn.ReLU(),
            nn.Conv2d(w, 8, 3, padding=1),
            nn.ReLU(),
        ]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *layers, nn.Conv2d(8, 4, 3))
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.1, 1.5)
            nn.init.normal_(m.bias, 0, 0.5)
    return net.eval()


def test_thin_groups_stay_whole_where_others_can_pay():
    plan = slimilar.analyze(basic_blocks(16, 96, 96), torch.zeros(1, 3, 12, 12), exclude=["0"])
    cut = plan.at(flops=0.75)
    assert cut.widths["2"] == 16
    assert {cut.widths[name] % 16 for name in ("7", "12")} == {0}


def test_thin_groups_are_halved_where_that_spares_loss():
    """In a network that is thin nearly all over, the few wide layers would pay for all."""
    plan = slimilar.analyze(basic_blocks(16, 16, 16, 16, 96), torch.zeros(1, 3, 12, 12), exclude=["0"])
    whole, halved = (plan.at(flops=share) for share in (0.97, 0.6))
    assert {whole.widths[name] for name in ("2", "7", "12", "17")} == {16}
    assert 8 in {halved.widths[name] for name in ("2", "7", "12", "17")}
    assert halved.flops <= 0.6 * plan.before.flops


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(1, (1, 16, 16, 16, 16)), (2, (1, 8, 16, 16, 16)), (4, (1, 4, 8, 16, 16)), (8, (1, 4, 4, 8, 16))],
)
def test_thin_groups_are_rounded_so_that_several_multiples_fit(parts, expected):
    rounding = Rounding(16, adapts=True, parts=parts)
    assert tuple(rounding.of(group(width, 1)) for width in (12, 16, 32, 64, 128)) == expected


def test_a_network_that_is_thin_all_over_takes_smaller_multiples():
    plan = slimilar.analyze(basic_blocks(32, 32, 32, 32), torch.zeros(1, 3, 12, 12), exclude=["0"])
    found = plan.at(flops=0.85)
    coarse = plan.at(flops=0.85, round_to=16)
    widths = [found.widths[name] for name in ("2", "7", "12", "17")]
    assert all(width % 4 == 0 for width in widths)
    assert any(width % 16 for width in widths)
    assert found.flops <= 0.85 * plan.before.flops
    assert _lost(found) < _lost(coarse) / 1.5


def test_a_wide_network_keeps_its_multiple():
    plan = slimilar.analyze(basic_blocks(128, 128, 128), torch.zeros(1, 3, 12, 12), exclude=["0"])
    assert plan.at(flops=0.95).widths == plan.at(flops=0.95, round_to=16).widths


def _lost(cut) -> float:
    return sum(float(removal.order.heights[: removal.steps].sum()) for removal in cut.removals.values())


def test_auto_counts_channels_not_units():
    assert Rounding(16, adapts=True).of(group(64, 4)) == 4
    assert Rounding(16, adapts=True).of(group(4, 32)) == 1
    assert Rounding(16).of(group(64, 4)) == 16, "a number is taken as it is"


@pytest.mark.parametrize("wrong", [0, -8, 1.5, True, "8", None])
def test_a_rounding_is_a_number_or_auto(wrong):
    with pytest.raises(
        InvalidInput, match='round_to must be a whole number of at least 1, "auto" or "measure"'
    ):
        slimilar.PruningTarget("flops", 0.5, wrong)


@pytest.fixture(scope="module")
def mobile():
    """A MobileNetV2 whose batch norms differ, as after training."""
    torch.manual_seed(0)
    net = import_torchvision().models.mobilenet_v2(weights=None)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.1, 1.5)
            nn.init.normal_(m.bias, 0, 0.5)
    return slimilar.analyze(net.eval(), torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
def test_budgets_are_met_with_widths_that_runtimes_like(mobile, share):
    cut = mobile.at(flops=share)
    assert share - 0.03 < cut.flops / mobile.before.flops <= share, "coarse widths waste little of the budget"
    assert cut.round_to == 16
    for g in mobile.groups:
        assert cut.widths[g.name] in (g.width, *range(16, g.width, 16)) or g.width < 32


def test_a_threshold_removes_nothing_above_it(mobile):
    exact, rounded = mobile.at(0.2, round_to=1), mobile.at(0.2)
    for name, kept in exact.kept.items():
        assert set(kept) <= set(rounded.kept[name])
    assert rounded.flops < mobile.before.flops


def test_auto_takes_smaller_multiples_where_sixteen_cannot_reach_the_budget(mobile):
    least = mobile.at(1.0).flops / mobile.before.flops
    exact = mobile.at(1.0, round_to=1).flops / mobile.before.flops
    wanted = (least + exact) / 2
    cut = mobile.at(flops=wanted)
    assert cut.flops <= wanted * mobile.before.flops
    assert cut.round_to < 16
    with pytest.raises(UnreachableBudget):
        mobile.at(flops=wanted, round_to=16)


def test_what_was_rounded_is_said(mobile):
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 4, 3)).eval()
    nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    result = slimilar.prune(net, torch.zeros(1, 3, 8, 8), flops=0.6)
    assert result.model[0].out_channels == 32
    assert "multiples of 16" in result.summary()


def test_what_rounding_keeps_is_counted_and_no_threshold_is_claimed_for_a_budget() -> None:
    plan = slimilar.analyze(rounded_network(), torch.zeros(1, 3, 8, 8))
    exact, rounded = plan.at(ratio=0.25, round_to=1), plan.at(ratio=0.25, round_to=16)
    assert exact.held == 0
    assert rounded.held == int(rounded.mask.sum() - exact.mask.sum()) > 0
    assert plan.at(0.1).by_threshold
    assert plan.at(flops=0.5, round_to=1).by_threshold
    assert not plan.at(flops=0.5, round_to=4).by_threshold
    assert "threshold" not in str(plan.at(flops=0.5, round_to=4))


def test_a_cut_that_rounding_leaves_empty_is_no_silent_success() -> None:
    net, example = rounded_network(), torch.zeros(1, 3, 8, 8)
    with pytest.warns(
        SlimilarWarning, match=r"no channel is removed: .* multiples of 32 keeps the \d+ .* round_to=1"
    ):
        result = slimilar.prune(net, example, ratio=0.25, round_to=32)
    assert result.cut.mask.all()
    assert f"rounding keeps {result.cut.held} more channels" in result.summary()


def rounded_network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 4, 3))
    nn.init.normal_(net[1].weight)
    nn.init.normal_(net[1].bias)
    return net.eval()
