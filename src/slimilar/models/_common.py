"""What the networks share: widths and initial weights."""

from __future__ import annotations

from torch import nn

from slimilar.errors import InvalidInput


def scaled(channels: int, width: float) -> int:
    """Return ``channels * width`` rounded to an even number, at least 2.

    Even, because a zero-padded shortcut puts half of the new channels on either side.

    >>> scaled(64, 0.375), scaled(16, 0.01)
    (24, 2)
    """
    if width <= 0:
        raise InvalidInput(f"width must be a positive multiplier, got {width}; 1.0 is the published network")
    return max(2, 2 * round(channels * width / 2))


def checked_classes(classes: int) -> int:
    """Return ``classes``, or raise where it is not a number of classes."""
    if classes < 1:
        raise InvalidInput(f"classes must be at least 1, got {classes}; pass the number of labels")
    return classes


def initialise(model: nn.Module) -> None:
    """Draw every convolution as in He et al. (2015), fan-out; batch norms start as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
