"""The paper's CIFAR networks, and others of their kind, by name.

>>> from slimilar.models import build
>>> sum(p.numel() for p in build("resnet20", classes=10).parameters())
269722
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from slimilar.models.checkpoints import CHECKPOINTS, Pretrained, pretrained
from slimilar.models.demo import demo_network, demo_record
from slimilar.models.preresnet import PreResNet
from slimilar.models.resnet import ResNet
from slimilar.models.vgg import VGG
from slimilar.utils.suggestions import choose

__all__ = [
    "CHECKPOINTS",
    "NAMES",
    "VGG",
    "PreResNet",
    "Pretrained",
    "ResNet",
    "build",
    "demo_network",
    "demo_record",
    "pretrained",
]

_DEPTHS = (20, 32, 44, 56, 110)
_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "vgg16": VGG,
    "preresnet110": partial(PreResNet, 110),
    "preresnet164": partial(PreResNet, 164),
    **{f"resnet{depth}": partial(ResNet, depth) for depth in _DEPTHS},
    **{f"resnet{depth}-conv": partial(ResNet, depth, shortcut="conv") for depth in _DEPTHS},
}
NAMES = tuple(_BUILDERS)


def build(name: str, classes: int = 10, width: float = 1.0) -> nn.Module:
    """Return a network with fresh weights; ``NAMES`` lists the names, ``width`` scales its channel counts."""
    return _BUILDERS[choose(name, NAMES, "network")](classes=classes, width=width)
