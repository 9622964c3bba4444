"""Small networks of every kind that is saved, exported and timed in the tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from slimilar.graph.groups import Residual
from slimilar.models import VGG, PreResNet, ResNet


def trained(model: nn.Module) -> nn.Module:
    """Give every batch norm the spread of a trained one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 0.5, 0.2)
            nn.init.normal_(module.bias, 0, 0.5)
            nn.init.normal_(module.get_buffer("running_mean"), 0, 0.1)
    return model.eval()


def layer(wide: int, width: int, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch norm and ReLU6."""
    conv = nn.Conv2d(wide, width, 3, padding=1, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU6())


class Dense(nn.Module):
    """Every layer reads all before it; a buffer that no state dict holds scales the last."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = layer(3, 8), layer(8, 8), layer(16, 8)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8).view(1, 8, 1, 1), persistent=False)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cat([x, self.second(x)], 1)
        x = torch.cat([x, self.scale * self.third(x)], 1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Mobile(nn.Module):
    """Inverted residuals with depthwise convolutions; `groups` has to shrink with the width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layer(3, 8)
        self.expand, self.depthwise = layer(8, 24), layer(24, 24, groups=24)
        self.project = nn.Sequential(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.depthwise(self.expand(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Tied(nn.Module):
    """One kernel under two names, and a number that the module holds itself."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.width = width
        self.stem, self.left, self.right = layer(3, width), layer(width, width), layer(width, width)
        self.right[0].weight = self.left[0].weight
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.right(self.left(self.stem(x)))
        out: Tensor = self.head(x.mean((2, 3)).reshape(-1, self.width))
        return out


Build = Callable[[], nn.Module]

# name -> the class, and how its residual streams are pruned
NETWORKS: dict[str, tuple[Build, Residual]] = {
    "vgg": (lambda: VGG(classes=5, width=0.125), "inner"),
    "resnet-inner": (lambda: ResNet(8, 5, 0.5), "inner"),
    "resnet-joint": (lambda: ResNet(8, 5, 0.5, shortcut="conv"), "joint"),
    "preresnet-select": (lambda: PreResNet(11, 5, 0.5), "select"),
    "preresnet-joint": (lambda: PreResNet(11, 5, 0.5), "joint"),
    "densenet": (Dense, "inner"),
    "mobilenet": (Mobile, "inner"),
    "tied": (Tied, "inner"),
}


def images(count: int = 2) -> Tensor:
    """Return some input for them."""
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
