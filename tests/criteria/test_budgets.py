"""Every criterion reaches a given budget of FLOPs within 1 % on the networks of the issue, so that costs are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import slimilar
from helpers.small_networks import trained
from slimilar.criteria import Span, Weights, available, make
from slimilar.graph.groups import ChannelGroup
from slimilar.models import VGG, ResNet
from slimilar.planning.plan import Plan
from slimilar.planning.ties import untied
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.torchvision_compat import import_torchvision

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "VGG-16": (VGG, 32),
    "ResNet-56": (lambda: ResNet(56), 32),  # padded shortcuts
    "ResNet-50": (lambda: import_torchvision().models.resnet50(), 64),
}


class Spy:
    """A criterion that keeps what it is shown, so that one look at a network serves all criteria."""

    name = "spy"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        self.groups, self.weights = groups, weights
        return ["seen"] * len(groups)


@cache
def looked_at(network: str) -> tuple[Plan, Spy]:
    build, size = NETWORKS[network]
    torch.manual_seed(0)
    net, spy = trained(build()), Spy()
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    return slimilar.analyze(net, x[:1], criterion=spy, calibration=x, labels=torch.tensor([0, 1])), spy


NAMES = [pytest.param(n, marks=[pytest.mark.slow] * (n == "span")) for n in available()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_budget_is_met_within_one_percent(network: str, name: str) -> None:
    seen, spy = looked_at(network)
    criterion = Span(effort=1e8) if name == "span" else make(name)
    answers = criterion.orders(spy.groups, spy.weights)
    answered = [(g, a) for g, a in zip(spy.groups, answers, strict=True) if isinstance(a, RemovalOrder)]
    groups, orders = zip(*answered, strict=True)
    plan = replace(seen, groups=groups, orders=untied(orders))  # as analyze() does
    for budget in (0.7, 0.5):
        assert (
            (budget - 0.01) * plan.before.flops <= plan.at(flops=budget).flops <= budget * plan.before.flops
        )


def test_span_meets_it_on_fewer_patches_than_a_kernel_has_taps() -> None:
    """Two images of one pixel, where a kernel of nine taps looks: there is nothing to fit, and it says an order."""
    torch.manual_seed(0)
    net = trained(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(8, 6, 3, padding=1), nn.Flatten(),
        )
    )  # fmt: skip
    x = torch.randn(2, 3, 8, 8)
    plan = slimilar.analyze(net, x[:1], criterion=Span(effort=1e6), calibration=x)
    assert sorted(plan.orders[0].removed.tolist()) == list(range(8))
    assert plan.at(flops=0.5).flops <= 0.5 * plan.before.flops
