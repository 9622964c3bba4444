"""Training mode, with or without new statistics of batch norms."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def set_training(model: nn.Module, freeze_statistics: bool = False) -> None:
    """Put a network into training mode; with `freeze_statistics` its batch norms keep and use their statistics.

    >>> net = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout())
    >>> set_training(net, freeze_statistics=True)
    >>> net[0].training, net[1].training
    (False, True)
    """
    model.train()
    if freeze_statistics:
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                module.eval()
