"""Model Folding as the benchmark runs it: exact widths, and no harm where channels are copies."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture
def rivals(monkeypatch) -> ModuleType:
    import rivals

    return rivals


def network(seed: int, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4, 1)
    ).eval()
    for t in (net[1].weight, net[1].bias, net[1].running_mean, net[1].running_var):
        nn.init.uniform_(t, 0.5, 2)
    return net


@pytest.mark.parametrize("width", [3, 5, 8])
def test_every_cluster_has_a_member(rivals, width):
    points = np.random.default_rng(0).normal(size=(9, 4))
    assert set(rivals.clusters(points, width)) == set(range(width))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_copies_do_not_make_a_cut_narrower(rivals):
    label = rivals.clusters(np.repeat(np.eye(3), 3, axis=0), 5)
    assert set(label) == set(range(5))
    assert all(len({i // 3 for i in np.flatnonzero(label == c)}) == 1 for c in range(5))


def test_folding_copies_changes_nothing(rivals):
    net = network(0)
    with torch.no_grad():
        for t in (net[0].weight, net[0].bias, *net[1].state_dict().values()):
            if t.ndim:
                t[4:] = t[:4]
    x = torch.randn(2, 3, 8, 8)
    small = rivals.folding(SimpleNamespace(model=net, example=x[:1]), 0.55)
    assert small[0].out_channels == 4
    torch.testing.assert_close(small(x), net(x))
