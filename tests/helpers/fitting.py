"""Small networks and images for the tests of the fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 64, size: int = 12) -> Tensor:
    """Smooth random images: neighbours alike, as in real ones."""
    noise = torch.randn(count, 3, size, size, generator=generator(7))
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * 2


def small_net(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10), nn.ReLU(),
        nn.Conv2d(10, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 1, bias=True), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    net.train()
    for _ in range(20):
        net(images())
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.uniform_(0.3, 1.5, generator=generator(1))
                m.bias.normal_(0, 0.5, generator=generator(2))
    return net.eval()


def duplicate(net: nn.Sequential, source: int, copies: list[int]) -> None:
    """Make channels of the first layer exact copies of another."""
    names = ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    state = net.state_dict()
    with torch.no_grad():
        for name in names:
            state[name][copies] = state[name][source].clone()
