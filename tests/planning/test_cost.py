"""FLOPs in the paper's convention, to the digit; MACs and parameters beside it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimilar
from slimilar import models
from slimilar.planning.cost import human
from slimilar.utils.torchvision_compat import import_torchvision


@pytest.mark.parametrize(
    ("name", "classes", "printed"),
    [
        ("vgg16", 10, "627.36 M"),
        ("vgg16", 100, "627.45 M"),
        ("preresnet110", 10, "341.23 M"),
        ("preresnet110", 100, "341.28 M"),
    ],
)
def test_printed_baselines(name: str, classes: int, printed: str) -> None:
    cost = slimilar.count(models.build(name, classes), torch.zeros(1, 3, 32, 32))
    assert human(cost.flops) == printed


def test_printed_baseline_of_resnet50() -> None:
    cost = slimilar.count(import_torchvision().models.resnet50(), torch.zeros(1, 3, 224, 224))
    assert human(cost.flops) == "8.21 G"
    assert cost.params == 25_557_032


@pytest.mark.parametrize(
    ("module", "shape", "flops", "macs"),
    [
        (nn.Conv2d(3, 8, 3, bias=False), (1, 3, 10, 10), 2 * 8 * 64 * 27, 8 * 64 * 27),
        (nn.Conv2d(3, 8, 3), (1, 3, 10, 10), 2 * 8 * 64 * 27 + 8 * 64, 8 * 64 * 27),
        (nn.Conv2d(8, 8, 3, groups=4, bias=False), (1, 8, 6, 6), 2 * 8 * 16 * 2 * 9, 8 * 16 * 2 * 9),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (1, 4, 5, 5), 2 * 100 * 6 * 4, 100 * 6 * 4),
        (nn.Conv1d(3, 5, 2, bias=False), (1, 3, 9), 2 * 5 * 8 * 6, 5 * 8 * 6),
        (nn.Linear(7, 5), (2, 7), 2 * 2 * 35 + 10, 70),
        (nn.BatchNorm2d(4).eval(), (1, 4, 3, 3), 2 * 36, 0),
        (nn.ReLU(), (1, 4, 3, 3), 36, 0),
        (nn.MaxPool2d(3, 2), (1, 4, 7, 7), 9 * 4 * 9, 0),
        (nn.AvgPool2d(2), (1, 4, 6, 6), 4 * 4 * 9, 0),
        (nn.AdaptiveAvgPool2d(1), (1, 4, 6, 6), 4 * 36, 0),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else None,
)
def test_each_operator(module: nn.Module, shape: tuple[int, ...], flops: int, macs: int) -> None:
    cost = slimilar.count(module, torch.zeros(shape))
    assert (cost.flops, cost.macs) == (flops, macs)


def test_modules_add_up_and_tied_parameters_count_once() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    net[2].weight = net[0].weight
    cost = slimilar.count(net, torch.zeros(1, 4, 8, 8))
    assert cost.params == sum(p.numel() for p in net.parameters())
    assert sum(m[0] for m in cost.modules.values()) == cost.flops
    assert cost.modules["1"][0] == 4 * 64


def _bare_net() -> nn.Module:
    """Return a network whose consumers have no place for a constant: reconstruction adds biases."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, bias=False)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4, bias=False))
    nn.init.uniform_(net[1].weight, 0.5, 1.5)
    nn.init.normal_(net[1].bias)
    return net.eval()


def test_one_kind_of_cost_is_that_of_the_whole() -> None:
    plan = slimilar.analyze(_bare_net(), torch.zeros(1, 3, 8, 8))
    kept = plan.at(ratio=0.5, round_to=1).mask
    cost = plan.costs.at(kept)
    assert cost.flops < plan.before.flops
    assert [plan.costs.total(kept, kind) for kind in ("flops", "macs", "params")] == [
        cost.flops, cost.macs, cost.params
    ]  # fmt: skip


def test_added_biases_are_counted_as_a_trace_counts_them() -> None:
    example = torch.zeros(2, 3, 8, 8)
    result = slimilar.prune(_bare_net(), example, ratio=0.5, round_to=1)
    assert result.surgery.biases
    assert result.cut.cost == slimilar.count(result.model, example)
