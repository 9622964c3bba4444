"""Moments without batch norm: measured ones against plain arithmetic, propagated ones against sampling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimilar
from slimilar.calibration.channel_moments import propagated
from slimilar.surgery.probe import find_structure


def network(norms: bool) -> nn.Sequential:
    """Return a small network; without norms it is the same one with its batch norms folded, as exporters do."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip
    for layer in (made[1], made[4]):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    made.train()
    with torch.no_grad():  # the statistics of the images below
        for layer in (made[1], made[4]):
            layer.momentum = 1.0
        made(images())
    made.eval()
    if norms:
        return made
    fused = nn.utils.fusion.fuse_conv_bn_eval
    return nn.Sequential(fused(made[0], made[1]), nn.ReLU(), fused(made[3], made[4]), nn.ReLU(), made[6])


def images() -> torch.Tensor:
    return torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def test_a_folded_network_is_clustered_as_the_one_it_was_folded_from():
    """Its batch norms were set on these very images, so that what is measured is beta and gamma."""
    plans = [
        slimilar.analyze(network(norms), images()[:1], criterion="similarity", calibration=images())
        for norms in (True, False)
    ]
    assert [len(plan.groups) for plan in plans] == [2, 2]
    assert plans[0].note == ""
    assert plans[1].note == "moments of 2 of 2 layers without batch norm measured on 64 images"
    for threshold in (0.05, 0.2, 0.5):
        kept = [list(plan.at(threshold).kept.values()) for plan in plans]
        assert kept[0] == kept[1]


def test_a_bias_behind_the_layer_counts():
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 1)
            self.register_buffer("shift", torch.arange(8.0).reshape(8, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.conv(x) + self.shift))

    model = Apart()
    plan = slimilar.analyze(model, images()[:1], criterion="similarity", calibration=images())
    joined = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    joined[0].weight, joined[0].bias = model.conv.weight, nn.Parameter(torch.arange(8.0))
    wanted = slimilar.analyze(joined, images()[:1], criterion="similarity", calibration=images())
    assert plan.orders[0].removed.tolist() == wanted.orders[0].removed.tolist()
    assert plan.orders[0].heights == pytest.approx(wanted.orders[0].heights, abs=1e-4)


def test_propagated_moments_are_those_of_independent_inputs():
    """Of 1 x 1 convolutions on independent pixels, where the assumption of independence holds at the first layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Hardswish(), nn.Conv2d(8, 4, 1)
    )
    trace = find_structure(model, torch.zeros(1, 16, 4, 4)).trace
    found = propagated(trace, dict(model.named_parameters()))
    convolutions = [k for k, op in enumerate(trace.ops) if op.name == "aten.convolution"]
    x = torch.randn(200_000, 16, 1, 1)
    with torch.no_grad():
        first = model[0](x)
        active = torch.relu(first)
        second = model[2](active)
    assert found[convolutions[0]].mean.tolist() == pytest.approx(first.mean((0, 2, 3)).tolist(), abs=0.02)
    assert found[convolutions[0]].var.tolist() == pytest.approx(first.var((0, 2, 3)).tolist(), rel=0.03)
    assert found[convolutions[1]].mean.tolist() == pytest.approx(second.mean((0, 2, 3)).tolist(), abs=0.02)


def test_a_network_that_never_had_a_batch_norm_is_pruned_without_images():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1)
    )
    result = slimilar.prune(model, images()[:1], flops=0.6)
    assert "propagated from an input of mean 0 and variance 1" in result.summary()


def test_what_cannot_be_propagated_says_what_to_pass():
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (nn.Conv2d(a, b, 1) for a, b in ((3, 8), (8, 8), (8, 4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.second(self.first(x).cumsum(3)).relu())

    plan = slimilar.analyze(Sorted(), images()[:1])
    reasons = {f.name: f.reason for f in plan.frozen}
    assert [g.name for g in plan.groups] == ["first"]
    assert "calibration images; pass some" in reasons["second"]
