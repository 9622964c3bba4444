"""GRAIL as the benchmark runs it, on networks whose operators differ from batch to batch."""

from __future__ import annotations

from types import SimpleNamespace

import rivals
import torch
from torch import Tensor, nn


class Reader(nn.Module):
    """Ends in a matrix product, which PyTorch computes by other operators for one line than for several."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.letters = nn.Parameter(torch.randn(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).mean(2).transpose(1, 2) @ self.letters


def test_a_network_that_computes_batches_by_other_operators_than_one_image() -> None:
    torch.manual_seed(0)
    net, lines = Reader().eval(), torch.randn(40, 3, 8, 8)
    small = rivals.grail(SimpleNamespace(model=net, example=lines[:1], calibration=lines, seed=0), 0.6)
    with torch.no_grad():
        wanted, given = net(lines), small(lines)
    assert small.first[0].out_channels < 16
    assert (given - wanted).square().mean() < wanted.var()
