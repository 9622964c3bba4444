"""A linear layer on a flattened image: one matrix between channels serves all pixels, in little memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import slimilar
from slimilar.calibration.consumers import ConsumerLayer, pixels_of_a_channel, unflattened
from slimilar.pipeline import apply
from slimilar.reconstruction import least_squares


def consumer(units: list[int], axis: int = 1) -> ConsumerLayer:
    index = np.arange(len(units))
    return ConsumerLayer(0, "", 0, axis, np.array(units), "w", 1, index, None, None, None, torch.ones(1))


@pytest.mark.parametrize(
    ("units", "pixels"),
    [
        ([0, 0, 0, 1, 1, 1], 3),
        ([5, 5, 2, 2, 0, 0], 2),
        ([0, 1, 2], 1),
        ([0, 0, 0], 3),
        ([0, 1, 0, 1], 1),  # channels last
        ([0, 0, 1], 1),
        ([0, 0, 1, 2], 1),
        ([0, 0, 1, 1, 0, 0], 1),
        ([-1, -1, 0, 0], 1),
    ],
)
def test_pixels_of_a_channel(units: list[int], pixels: int) -> None:
    assert pixels_of_a_channel(consumer(units)) == pixels


def test_as_a_convolution() -> None:
    found = unflattened(consumer([4, 4, 7, 7]), 2)
    assert found.units.tolist() == [4, 7]
    assert found.covered.tolist() == [1, 1]


def test_a_channel_that_others_explain_is_made_up_for_at_every_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6 * 16, 5)).eval()
    images = torch.randn(64, 3, 6, 6)
    with torch.no_grad():
        net[0].weight[4] = net[0].weight[0] - 2 * net[0].weight[1]
        net[0].weight[4:5] *= 0.1  # so that its magnitude is the least
        wanted = net(images)
    plan = slimilar.analyze(net, images[:1], criterion="magnitude-l2")
    cut = plan.at(ratio=1 / 6, round_to=1)
    monkeypatch.setattr(least_squares, "LARGEST", 8)
    seen = []
    monkeypatch.setattr(
        least_squares,
        "unflattened",
        lambda c, run: seen.append(run) or unflattened(c, run),  # type: ignore[func-returns-value]
    )
    errors = {}
    for method in ("linear", "none"):
        small = apply(net, images[:1], plan, cut, reconstruction=method, calibration=images).model
        with torch.no_grad():
            errors[method] = float((small(images) - wanted).abs().max())
    assert set(seen) == {16}
    assert errors["linear"] < 0.02 * errors["none"]
