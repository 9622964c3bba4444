"""Let kernels read stand-ins for channels that left: a matrix between channels and a constant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.substitute.sites import Site
from slimilar.substitute.solve import mixing

Kept = NDArray[np.bool_]
StandIn = Callable[
    [Tensor, Tensor], tuple[Tensor, Tensor]
]  # kept and removed positions -> matrix and constant


def regression(mean: Tensor, covariance: Tensor, strength: float) -> StandIn:
    """Let removed positions be the best combination of kept ones plus a constant."""

    def stand_in(kept: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        matrix = mixing(covariance, kept, removed, strength)
        return matrix, mean[removed] - matrix @ mean[kept]

    return stand_in


def silence(kept: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Let removed positions say nothing."""
    zeros = torch.zeros(len(removed), len(kept), dtype=torch.float64)
    return zeros, zeros.new_zeros(len(removed))


def absorb(weight: Tensor, site: Site, stays: Kept, stand_in: StandIn) -> tuple[Tensor, Tensor]:
    """Return a kernel (out, in, taps...) that reads stand-ins for removed channels, and the constant left over."""
    new = weight.double().flatten(2) if weight.ndim > 2 else weight.double()[..., None].clone()
    new = new.clone()
    shift = torch.zeros(weight.shape[0], dtype=torch.float64)
    index = torch.from_numpy(site.weight_index)
    for outputs, positions in site.blocks(weight.shape[0]):
        kept, removed = (torch.from_numpy(positions[stays[positions] == s]) for s in (True, False))
        if len(removed) == 0:
            continue
        part = new[outputs]
        gone = part[:, index[removed]]
        if len(kept):
            matrix, constant = stand_in(kept, removed)
            part[:, index[kept]] += torch.einsum("ort,rk->okt", gone, matrix)
            shift[outputs] += gone @ site.covered @ constant
        part[:, index[removed]] = 0
    return new.reshape(weight.shape).to(weight.dtype), shift.to(weight.dtype)
