"""The pre-activation bottleneck ResNet for CIFAR (He et al., 2016; as in Liu et al., 2017)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from slimilar.errors import InvalidInput
from slimilar.models._common import checked_classes, initialise, scaled

EXPANSION = 4


class Bottleneck(nn.Module):
    """Batch norm, ReLU, convolution; three times, then the sum with the stream that came in.

    ``bn1`` is the only consumer of the stream inside the block, so a pruner can put a channel selection in its
    place, and the choice belongs to this block alone.
    """

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        wider = planes * EXPANSION
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, wider, 1, bias=False)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wider:
            self.downsample = nn.Conv2d(channels, wider, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.conv1(F.relu(self.bn1(x)))
        y = self.conv2(F.relu(self.bn2(y)))
        y = self.conv3(F.relu(self.bn3(y)))
        total: Tensor = y + shortcut
        return total


class PreResNet(nn.Module):
    """Depth 9n + 2: one convolution, three stages of n bottlenecks, batch norm, pooling, one linear layer.

    >>> import torch
    >>> PreResNet(depth=11, classes=100)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 100])
    """

    def __init__(self, depth: int = 110, classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 9)
        if rest or blocks < 1:
            raise InvalidInput(f"depth must be 9n + 2 (11, 20, ..., 110, 164), got {depth}")
        planes = [scaled(channels, width) for channels in (16, 32, 64)]
        self.conv1 = nn.Conv2d(3, planes[0], 3, padding=1, bias=False)
        self.layer1 = _stage(planes[0], planes[0], blocks, stride=1)
        self.layer2 = _stage(planes[0] * EXPANSION, planes[1], blocks, stride=2)
        self.layer3 = _stage(planes[1] * EXPANSION, planes[2], blocks, stride=2)
        self.bn = nn.BatchNorm2d(planes[2] * EXPANSION)
        self.linear = nn.Linear(planes[2] * EXPANSION, checked_classes(classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        pooled = F.adaptive_avg_pool2d(F.relu(self.bn(x)), 1)
        scores: Tensor = self.linear(pooled.flatten(1))
        return scores


def _stage(channels: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, planes, stride)
    return nn.Sequential(first, *(Bottleneck(planes * EXPANSION, planes, 1) for _ in range(blocks - 1)))
