"""Every criterion against a case worked out by hand or an independent reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import slimilar
from helpers.small_networks import NETWORKS, trained
from helpers.small_networks import images as noise
from slimilar import criteria
from slimilar.criteria import (
    Criterion,
    Facts,
    Ranking,
    Slimming,
    Weights,
    available,
    facts,
    make,
    register,
)
from slimilar.criteria.base import Floats, by_rank, by_share
from slimilar.criteria.geometric import sums_of_distances
from slimilar.criteria.ranking import Kind
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup
from slimilar.planning.plan import Plan
from slimilar.planning.ties import untied
from slimilar.similarity.removal_order import RemovalOrder


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 16, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=generator(3))


LABELS = torch.arange(16) % 4


def small_net() -> nn.Sequential:
    """Two convolutions with batch norm, one without, a linear layer; all numbers fixed."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
    )  # fmt: skip
    return trained(net)


def plan_of(net: nn.Module, criterion: Criterion | str, **options: object) -> Plan:
    return slimilar.analyze(net, images()[:1], criterion=criterion, **options)  # type: ignore[arg-type]


def removed(plan: Plan, name: str) -> list[int]:
    order: list[int] = plan.orders[[g.name for g in plan.groups].index(name)].removed.tolist()
    return order


# --- what is declared and needed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", available())
def test_every_criterion_declares_itself(name: str) -> None:
    found = facts(name)
    assert found.what.endswith(".")
    assert found.reconstruction in ("none", "merge", "least-squares")
    made = make(name)
    assert made.name == name
    assert getattr(made, "facts", found) == found
    assert (found.needs == "training") == hasattr(made, "hooks")


@pytest.mark.parametrize("name", available())
def test_what_is_missing_is_said_before_the_work_starts(name: str) -> None:
    net, needs = small_net(), facts(name).needs
    if needs == "nothing":
        assert plan_of(net, name).criterion == name
    if needs in ("images", "labels"):
        with pytest.raises(InvalidInput, match=r"images, got none: pass calibration="):
            plan_of(net, name)
    if needs == "labels":
        with pytest.raises(
            InvalidInput, match=r"follows the loss on labelled images, got .*: pass calibration= with labels="
        ):
            plan_of(net, name, calibration=images())
        with pytest.raises(
            InvalidInput, match=r"follows the loss on labelled images, got .*: pass calibration= with labels="
        ):
            slimilar.prune(net, images()[:1], flops=0.5, criterion=name, calibration="synthesize")
    if needs == "training":
        with pytest.raises(InvalidInput, match=r"training phase.*training_hooks.*trained=True"):
            plan_of(net, name)
        assert plan_of(net, make(name, trained=True)).criterion == name


def test_labels_come_beside_the_pictures_or_apart() -> None:
    net, x = small_net(), images()
    apart = plan_of(net, "taylor", calibration=x, labels=LABELS)
    beside = plan_of(net, "taylor", calibration=[(x[:8], LABELS[:8]), (x[8:], LABELS[8:])])
    assert all(np.array_equal(a.removed, b.removed) for a, b in zip(apart.orders, beside.orders, strict=True))
    for wrong in (LABELS[:9], LABELS.float(), LABELS[:, None], torch.cat([LABELS, LABELS]), "cats"):
        with pytest.raises(InvalidInput, match="labels must be"):
            plan_of(net, "taylor", calibration=x, labels=wrong)
    with pytest.raises(InvalidInput, match=r"labels must be 0 to 3 for 4 scores, got 0 to 9"):
        plan_of(net, "taylor", calibration=x, labels=LABELS * 3)


def test_an_own_criterion_can_be_registered() -> None:
    class Last:
        name = "last-first"
        facts = Facts("The last channels leave first.")

        def orders(self, groups: list[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
            return [by_share(np.arange(g.width)[::-1].copy(), turn) for turn, g in enumerate(groups)]

    register("last-first", Last)
    try:
        assert "last-first" in available()
        assert facts("last-first").what == "The last channels leave first."
        result = slimilar.prune(small_net(), images()[:1], ratio=0.5, criterion="last-first")
        assert result.kept["0"] == (0, 1, 2)
    finally:
        criteria._KNOWN.pop("last-first")
    with pytest.raises(InvalidInput, match="criterion must be one of"):
        facts("last-first")


def test_facts_may_be_given_on_registering() -> None:
    class Plain:
        name = "plain"

        def orders(self, groups: list[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
            assert weights.calibration is not None
            return ["looked"] * len(groups)

    register("plain", Plain, Facts("Looks and does nothing.", needs="images"))
    try:
        with pytest.raises(InvalidInput, match=r"images, got none: pass calibration="):
            plan_of(small_net(), "plain")
        assert plan_of(small_net(), "plain", calibration=images()).frozen[-1].reason == "looked"
    finally:
        criteria._KNOWN.pop("plain")


# --- heights: shares, ranks, ratio, quantile ------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(7))
@pytest.mark.parametrize("n", [1, 5, 16, 64])
def test_shares_are_exact_where_they_are_whole_and_never_off_by_more_than_one(n: int, turn: int) -> None:
    order = by_share(np.arange(n), turn)
    assert order.heights[0] >= 0
    assert order.heights[-1] < 1
    for k in range(n + 1):
        assert order.steps(k / n) == k
        assert abs(order.steps(min(1.0, (k + 0.5) / n)) - (k + 0.5)) <= 1


def test_layers_of_one_width_do_not_step_together() -> None:
    heights = np.concatenate([by_share(np.arange(16), turn).heights for turn in range(27)])
    assert len(np.unique(heights)) == 27 * 16


def test_ranks_are_those_of_all_layers() -> None:
    plan = plan_of(small_net(), "magnitude-l2")
    scores: list[Floats | str] = [np.linspace(0, 1, 6), "a reason", np.linspace(2, 0.5, 5)]
    first, reason, last = by_rank(scores, plan.groups)
    assert reason == "a reason"
    assert isinstance(first, RemovalOrder)
    assert isinstance(last, RemovalOrder)
    assert (first.heights * 11).round(9).tolist() == [0, 1, 2, 4, 5, 7]
    assert last.removed.tolist() == [4, 3, 2, 1, 0]


def test_ties_are_broken_evenly_and_by_next_to_nothing() -> None:
    orders = [RemovalOrder(np.arange(n), np.arange(n) * 4 // n / 3, np.full(n, -1)) for n in (12, 40, 20)]
    found = untied(orders)
    moved = np.concatenate([o.heights for o in found])
    assert len(np.unique(moved[moved < 1])) == (moved < 1).sum()
    for before, after in zip(orders, found, strict=True):
        assert np.array_equal(before.removed, after.removed)
        assert after.heights == pytest.approx(before.heights, abs=1e-10)
        assert (after.heights >= before.heights).all()
        for t in (0.0, 1 / 3, 2 / 3, 0.5, 1.0):
            assert before.steps(t) == after.steps(t)
    zeros = np.sort(moved[moved < 0.1])
    half = zeros[len(zeros) // 2]
    shares = [(o.heights < half).sum() / (b.heights == 0).sum() for o, b in zip(found, orders, strict=True)]
    assert np.ptp(shares) < 1 / 3  # all layers alike, but for whole channels


def test_a_ratio_takes_its_share_of_every_layer() -> None:
    plan = plan_of(small_net(), "magnitude-l2")
    assert list(plan.at(ratio=0.5).widths.values()) == [3, 4, 3]
    assert list(plan.at(ratio=0.0).widths.values()) == [6, 8, 5]
    assert list(plan.at(ratio=1.0).widths.values()) == [1, 1, 1]
    assert list(plan.at(ratio=0.5, thresholds={"3": 0.0}).widths.values()) == [3, 8, 3]
    with pytest.raises(InvalidInput, match="ratio must be a number from 0 to 1"):
        plan.at(ratio=1.5)
    with pytest.raises(InvalidInput, match="got flops and ratio"):
        plan.at(ratio=0.5, flops=0.5)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.7])
def test_a_quantile_takes_its_share_of_all_channels_by_height(share: float) -> None:
    net = small_net()
    plan = plan_of(net, Slimming(trained=True))
    assert any(f.name == "6" and f.reason.startswith("no batch norm") for f in plan.frozen)
    gamma = torch.cat([net[1].weight, net[4].weight]).abs()
    kept = (gamma > gamma.sort().values[int(share * 14) - 1]) if share else torch.ones(14, dtype=torch.bool)
    cut = plan.at(quantile=share)
    assert cut.kept["0"] == tuple(np.flatnonzero(kept[:6]))
    assert cut.kept["3"] == tuple(np.flatnonzero(kept[6:]))


# --- one by one -----------------------------------------------------------------------------------------------------


def test_slimming_never_empties_a_layer() -> None:
    net = small_net()
    net[1].weight.data.mul_(1e-3)  # all of the first layer is smaller than any of the second
    cut = plan_of(net, Slimming(trained=True)).at(quantile=0.5)
    assert cut.widths == {"0": 1, "3": 8 - (7 - 6)}
    assert cut.kept["0"] == (int(net[1].weight.abs().argmax()),)


def test_magnitudes_are_norms_of_filters() -> None:
    net = small_net()
    for name, power in (("magnitude-l1", 1), ("magnitude-l2", 2)):
        size = net[3].weight.detach().flatten(1).norm(power, dim=1)
        assert removed(plan_of(net, name), "3") == size.argsort().tolist()


class Largest(TorchDispatchMode):
    """See how large the largest tensor is."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.seen = max([self.seen, *(t.numel() for t in (out,) if isinstance(t, Tensor))])
        return out


class Uneven(nn.Module):
    """Eight units of eight channels each, which a grouped convolution holds together, beside 192 of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv2d(3, 256, 3, padding=1), nn.Conv2d(64, 64, 1, groups=8)
        self.last, self.other = nn.Conv2d(64, 4, 1), nn.Conv2d(192, 4, 1)
        self.sizes = [64, 192]

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).relu().split(self.sizes, 1)
        return self.last(self.grouped(a)) + self.other(b)


@pytest.mark.parametrize(("name", "power"), [("magnitude-l1", 1), ("magnitude-l2", 2)])
def test_a_unit_of_many_filters_makes_no_other_larger(name: Kind, power: int) -> None:
    torch.manual_seed(0)
    net = Uneven().requires_grad_(False)
    (group,) = plan_of(net, name).groups
    with Largest() as run:
        (order,) = Ranking(name).orders([group], Weights(net.state_dict()))
    assert run.seen <= net.first.weight.numel()
    place = {m.tensor: m.units for m in group.members}
    size = torch.zeros(group.width, dtype=torch.float64)
    for unit in range(group.width):
        held = [getattr(net, n).weight[place[f"{n}.weight"] == unit] for n in group.producers]
        size[unit] = torch.cat([k.double().flatten() for k in held]).norm(power)
    assert isinstance(order, RemovalOrder)
    assert order.removed.tolist() == [u for u in size.argsort().tolist() if u not in group.fixed]


def test_scales_are_those_of_the_batch_norm_behind() -> None:
    net = small_net()
    plan = plan_of(net, "bn-scale")
    for name, norm in (("0", net[1]), ("3", net[4])):
        assert removed(plan, name) == norm.weight.detach().abs().argsort().tolist()
    assert [(f.name, f.reason) for f in plan.frozen if "scale" in f.reason] == [
        ("6", "no batch norm: there is no scale to rank by")
    ]


def test_lots_are_fair_and_drawn_by_the_seed() -> None:
    plan = plan_of(small_net(), "random")
    drawn = [Ranking("random", seed).orders(plan.groups, Weights({}))[1] for seed in range(200)]
    orders = [order.removed.tolist() for order in drawn if isinstance(order, RemovalOrder)]
    assert removed(plan, "3") == orders[0]
    first = np.bincount([order[0] for order in orders], minlength=8)
    assert (
        np.square(first - 25).sum() / 25 < 24.3
    )  # chi-squared, 7 degrees of freedom: one in a thousand is above
    assert len({tuple(order) for order in orders}) > 190


def test_geometric_median_by_brute_force() -> None:
    net = small_net()
    held = net[3].weight.detach().double().flatten(1)
    total = [sum(float((a - b).norm()) for b in held) for a in held]
    assert removed(plan_of(net, "geometric-median"), "3") == np.argsort(total).tolist()
    assert sums_of_distances(held).tolist() == pytest.approx(total)
    # The sum of distances is least at the geometric median itself: no point that we find lies lower.
    points = torch.randn(9, 2, generator=generator(5), dtype=torch.float64)
    grid = torch.tensor(list(itertools.product(np.linspace(-2, 2, 41), repeat=2)))
    lowest = torch.cdist(grid, points).sum(1).min()
    nearest = points[sums_of_distances(points).argmin()]
    median = grid[torch.cdist(grid, points).sum(1).argmin()]
    assert float(sums_of_distances(points).min()) >= float(lowest) - 0.2
    assert torch.equal(points[(points - median).norm(dim=1).argmin()], nearest)


def test_the_median_ignores_the_norm() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 1))
    net[0].weight.data = torch.tensor([0.0, 10.0, 9.0, 11.0]).reshape(4, 1, 1, 1)
    plan = slimilar.analyze(net, torch.zeros(1, 1, 4, 4), criterion="geometric-median")
    assert plan.orders[0].removed.tolist() == [1, 2, 3, 0]  # 12, 12, 14 and 30 away from all others


def test_duplicates_are_found_and_leave_without_a_trace() -> None:
    net, x = small_net().double(), images().double()
    with torch.no_grad():
        for t in (
            net[3].weight,
            net[3].bias,
            net[4].weight,
            net[4].bias,
            net[4].running_mean,
            net[4].running_var,
        ):
            t[[2, 5]] = t[1].clone()
        net[3].weight[5] *= 3  # the batch norm takes a scale back
        net[3].bias[5] *= 3
        net[4].running_mean[5] *= 3
        net[4].running_var[5] = 9 * (net[4].running_var[5] + net[4].eps) - net[4].eps
    plan = slimilar.analyze(net, x[:1], criterion="duplicates")
    cut = plan.at(1e-9)
    assert cut.widths == {"0": 6, "3": 6, "6": 5}
    assert {1, 2, 5} in [set(c.members) for c in cut.clusters["3"]]
    result = slimilar.prune(net, x[:1], threshold=1e-9, criterion="duplicates", substitute="merge")
    with torch.no_grad():
        assert torch.allclose(result.model(x), net(x), atol=1e-10)


def test_two_channels_with_other_batch_norms_are_no_duplicates() -> None:
    net = small_net()
    with torch.no_grad():
        net[3].weight[5], net[3].bias[5] = net[3].weight[1].clone(), net[3].bias[1].clone()
    assert plan_of(net, "duplicates").at(1e-6).widths["3"] == 8


def test_taylor_is_the_slope_of_the_loss() -> None:
    net, x = small_net().double(), images().double()
    plan = slimilar.analyze(net, x[:1], criterion="taylor", calibration=x, labels=LABELS)

    def loss(unit: int, gate: float) -> float:
        with torch.no_grad():
            held = net[:6](x)
            held[:, unit] *= gate
            return float(F.cross_entropy(net[6:](held), LABELS))

    slopes = [(loss(u, 1 + 1e-5) - loss(u, 1 - 1e-5)) / 2e-5 for u in range(8)]
    assert removed(plan, "3") == np.argsort(np.square(slopes)).tolist()


# --- on all kinds of networks ---------------------------------------------------------------------------------------


class Spy:
    """A criterion that keeps what it is shown."""

    name = "spy"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        self.groups, self.weights = groups, weights
        return ["seen"] * len(groups)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_criterion_answers_for_every_kind_of_network(network: str) -> None:
    build, residual = NETWORKS[network]
    torch.manual_seed(0)
    net, x, spy = trained(build()), noise(4), Spy()
    seen = slimilar.analyze(
        net, x[:1], criterion=spy, residual=residual, calibration=x, labels=torch.arange(4)
    )  # type: ignore[arg-type]
    for name in available():
        if name == "span":
            continue  # tests/test_substitute.py
        answers = make(name).orders(spy.groups, spy.weights)
        answered = [(g, a) for g, a in zip(spy.groups, answers, strict=True) if not isinstance(a, str)]
        assert answered, name
        for group, order in answered:
            assert 0 < len(order) <= group.width - len(group.fixed)
            assert not set(order.removed.tolist()) & set(group.fixed)
            assert 0 <= order.heights[0] <= order.heights[-1] <= 1
        groups, orders = zip(*answered, strict=True)
        plan = replace(seen, groups=groups, orders=orders)
        assert plan.at(flops=0.8).flops <= 0.8 * plan.before.flops


def test_the_scan_counts_the_outputs_of_a_transposed_convolution_on_their_own_axis() -> None:
    """Its kernel holds inputs first: 16 of them, and 5 outputs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 5, 2, 2), nn.ReLU(),
        nn.Conv2d(5, 4, 1),
    ).eval()  # fmt: skip
    result = slimilar.prune(net, images(1), ratio=0.4, calibration=images(32))
    assert result.error is not None
    assert result.error < 1e-4
