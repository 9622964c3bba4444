"""Basic-block ResNets for CIFAR (He et al., 2015): depths 20, 32, 44, 56, 110."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from slimilar.errors import InvalidInput
from slimilar.models._common import checked_classes, initialise, scaled

Shortcut = Literal["pad", "conv"]


class PadShortcut(nn.Module):
    """Every second pixel, and zeros for the channels that are new: half of them on either side."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.before, self.stride = new_channels // 2, stride
        self.after = new_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the sum with the stream that came in; ReLU afterwards."""

    def __init__(self, channels: int, planes: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != planes:
            self.shortcut = _shortcut(channels, planes, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def _shortcut(channels: int, planes: int, stride: int, kind: Shortcut) -> nn.Module:
    if kind == "pad":
        return PadShortcut(planes - channels, stride)
    return nn.Sequential(nn.Conv2d(channels, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))


class ResNet(nn.Module):
    """Depth 6n + 2: one convolution, three stages of n basic blocks, pooling, one linear layer.

    ``shortcut`` says what a stage change does: ``"pad"`` (no parameters) or ``"conv"`` (1x1 and batch norm).

    >>> import torch
    >>> ResNet(depth=8, classes=10, shortcut="conv")(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self, depth: int = 56, classes: int = 10, width: float = 1.0, *, shortcut: Shortcut = "pad"
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise InvalidInput(f"depth must be 6n + 2 (8, 20, 32, 44, 56, 110), got {depth}")
        if shortcut not in get_args(Shortcut):
            raise InvalidInput(f"shortcut must be one of {get_args(Shortcut)}, got {shortcut!r}")
        planes = [scaled(channels, width) for channels in (16, 32, 64)]
        self.conv1 = nn.Conv2d(3, planes[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        self.layer1 = _stage(planes[0], planes[0], blocks, 1, shortcut)
        self.layer2 = _stage(planes[0], planes[1], blocks, 2, shortcut)
        self.layer3 = _stage(planes[1], planes[2], blocks, 2, shortcut)
        self.linear = nn.Linear(planes[2], checked_classes(classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def _stage(channels: int, planes: int, blocks: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = BasicBlock(channels, planes, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(planes, planes, 1, shortcut) for _ in range(blocks - 1)))
