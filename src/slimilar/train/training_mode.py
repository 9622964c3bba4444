"""Training mode, with or without new statistics of batch norms, with or without dropout."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def set_training(model: nn.Module, freeze_statistics: bool = False, dropout: bool = True) -> None:
    """Put a network into training mode.

    With `freeze_statistics` its batch norms keep and use their statistics. Without `dropout` its dropout layers pass
    everything on.

    >>> net = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout())
    >>> set_training(net, freeze_statistics=True)
    >>> net[0].training, net[1].training
    (False, True)
    """
    model.train()
    for module in model.modules():
        frozen = freeze_statistics and isinstance(module, _BatchNorm) and module.running_mean is not None
        if frozen or (not dropout and isinstance(module, _DropoutNd)):
            module.eval()
