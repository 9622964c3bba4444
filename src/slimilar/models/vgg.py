"""VGG-16 for CIFAR: the variant of Liu et al. (2017) that the paper prunes."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from slimilar.models._common import checked_classes, initialise, scaled

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    """13 convolutions with batch norm and ReLU, 4 max pools, one average pool, one linear layer.

    Layers carry their VGG names (``features.conv3_2``), so that a report on them can be read. ``bias``,
    ``hidden`` and ``dropout`` give the older form found in many published checkpoints: convolutions with a
    bias, and a classifier with one hidden layer behind a fifth max pool.

    >>> import torch
    >>> VGG(classes=10, width=0.125)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        width: float = 1.0,
        *,
        bias: bool = False,
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        last = nn.AdaptiveAvgPool2d(1) if hidden is None else nn.MaxPool2d(2)
        self.features = nn.Sequential(_features(width, bias, last))
        channels = scaled(STAGES[-1][-1], width)
        self.classifier = _classifier(channels, hidden, checked_classes(classes), dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).flatten(1))
        return scores


def _features(width: float, bias: bool, last: nn.Module) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for stage, widths in enumerate(STAGES, 1):
        for i, published in enumerate(widths, 1):
            wider = scaled(published, width)
            layers[f"conv{stage}_{i}"] = nn.Conv2d(channels, wider, 3, padding=1, bias=bias)
            layers[f"bn{stage}_{i}"] = nn.BatchNorm2d(wider)
            layers[f"relu{stage}_{i}"] = nn.ReLU(inplace=True)
            channels = wider
        layers[f"pool{stage}"] = nn.MaxPool2d(2) if stage < len(STAGES) else last
    return layers


def _classifier(channels: int, hidden: int | None, classes: int, dropout: float) -> nn.Module:
    if hidden is None:
        return nn.Linear(channels, classes)
    return nn.Sequential(
        nn.Dropout(dropout),
        nn.Linear(channels, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
