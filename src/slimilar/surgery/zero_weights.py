"""Weights that are zero throughout hide what lies behind them from a verification: it would compare zeros.

So it is in networks that are not trained yet (the head of torchvision's vision transformers, the last batch norm of
residual branches), in LoRA and in ControlNet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from slimilar.utils.modules import named_parameters


def random_for_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Return random numbers for the weights of a model that are zero throughout, by name.

    Biases that are zero hide nothing, and are left out.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    >>> _ = nn.init.zeros_(net[1].weight)
    >>> list(random_for_zeros(net))
    ['1.weight']
    """
    weights = {n: t for n, t in named_parameters(model).items() if "bias" not in n.rpartition(".")[2]}
    generator = torch.Generator().manual_seed(0)
    return {name: _random_like(t, generator) for name, t in weights.items() if _is_zero(t)}


def _is_zero(t: Tensor) -> bool:
    t = t.detach()
    if not t.is_floating_point() or t.is_meta or not t.numel():
        return False
    return not bool(t.reshape(-1)[0]) and not bool(t.any())  # most are told by their first number


def _random_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """Return random numbers of a size that leaves that of activations as it is."""
    each = t[0].numel() if t.ndim > 1 else 1
    return (torch.randn(t.shape, generator=generator) / math.sqrt(each)).to(t.device, t.dtype)
