"""Kernels in which kept channels replace removed ones: by a matrix between channels, and a constant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration.consumers import ConsumerLayer
from slimilar.reconstruction.solvers import mixing
from slimilar.utils.precision import exact_device
from slimilar.utils.symmetric import quadratic_forms

Kept = NDArray[np.bool_]
Replacement = Callable[
    [Tensor, Tensor], tuple[Tensor | None, Tensor]
]  # kept and removed positions -> matrix, None for zeros, and constant

# Of the variance: where kept channels explain little of the removed ones, noise must not grow.
_MOST_GAIN = 16.0


def regression(mean: Tensor, covariance: Tensor, strength: float) -> Replacement:
    """Replace removed positions by the best linear combination of kept ones, plus a constant."""

    def stand_in(kept: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        matrix = mixing(covariance, kept, removed, strength)
        return matrix, mean[removed] - matrix @ mean[kept]

    return stand_in


def zero_replacement(kept: Tensor, removed: Tensor) -> tuple[None, Tensor]:
    """Replace removed positions by zero."""
    return None, torch.zeros(len(removed), dtype=torch.float64)


def restored(
    weight: Tensor, new: Tensor, consumer: ConsumerLayer, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return a kernel whose outputs vary as much as before, and the constant that leaves their means as they were.

    A linear combination explains only a part of a removed channel. So the outputs of a consumer vary less, and after
    some layers hardly at all. With $w$ the kernel of an output before and $w'$
    after, each by tap, $w'$ is made larger by $f^2 = \sum_t w_t^\top \Sigma w_t / \sum_t w_t'^\top \Sigma w_t'$.
    """
    home, index = exact_device(weight.device), torch.from_numpy(consumer.weight_index)
    old, now = (_by_tap(w.to(home)) for w in (weight, new))
    shift = torch.zeros(len(weight), dtype=torch.float64, device=home)
    factor, mean, covariance, covered = (
        t.to(home) for t in (torch.ones_like(shift), mean, covariance.to(old), consumer.covered)
    )
    for outputs, positions in consumer.blocks(len(weight)):
        at = torch.from_numpy(positions)
        parts = [_columns(w[outputs], index[at]) for w in (old, now)]
        left = parts[1].ne(0).any(2).any(0).nonzero().flatten()  # removed positions are zero, and add nothing
        spread = covariance if len(at) == len(mean) else covariance[at][:, at]
        before = _variances(parts[0], spread)
        after = _variances(parts[1][:, left], spread[left][:, left])
        varies = after > 1e-12 * before  # a constant output has no variance to restore
        factor[outputs] = torch.where(varies, before / after, 1.0).clamp(1, _MOST_GAIN).sqrt()
        levels = torch.outer(mean[at], covered.to(mean)).flatten().to(old)
        level, changed = ((w.flatten(1) @ levels).double() for w in parts)
        shift[outputs] = level - factor[outputs] * changed
    kernel = new * factor.reshape(-1, *[1] * (new.ndim - 1)).to(new)
    return kernel, shift.to(new)


def _by_tap(weight: Tensor) -> Tensor:
    """Return a kernel as (out, in, taps)."""
    return weight.flatten(2) if weight.ndim > 2 else weight[..., None]


def _columns(kernel: Tensor, index: Tensor) -> Tensor:
    """Return some input channels of a kernel; not a copy if they are all, in their order."""
    whole = len(index) == kernel.shape[1] and torch.equal(index, torch.arange(len(index)))
    return kernel if whole else kernel[:, index]


def _variances(kernel: Tensor, covariance: Tensor) -> Tensor:
    """Return the variance of every output of a kernel (out, in, taps), summed over taps; only ratios of it are used."""
    outputs, inputs, taps = kernel.shape
    rows = kernel.movedim(2, 1).reshape(outputs * taps, inputs)
    return quadratic_forms(rows, covariance).reshape(outputs, taps).double().sum(1)


def absorb(
    weight: Tensor,
    consumer: ConsumerLayer,
    stays: Kept,
    stand_in: Replacement,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return a kernel (out, in, taps...) on kept channels, which replace removed ones, and the constant left over.

    It is computed in `dtype`; what takes long are products of large matrices.
    """
    new = _by_tap(weight.to(exact_device(weight.device), dtype, copy=True))
    shift, covered = new.new_zeros(weight.shape[0]), consumer.covered.to(new)
    index = torch.from_numpy(consumer.weight_index)
    for outputs, positions in consumer.blocks(weight.shape[0]):
        kept, removed = (torch.from_numpy(positions[stays[positions] == s]) for s in (True, False))
        if len(removed) == 0:
            continue
        part = new[outputs]
        gone = part[:, index[removed]]
        matrix, constant = stand_in(kept, removed)
        if matrix is not None:
            part[:, index[kept]] += torch.einsum("ort,rk->okt", gone, matrix.to(new))
        shift[outputs] += gone @ covered @ constant.to(new)
        part[:, index[removed]] = 0
    return new.reshape(weight.shape).to(weight), shift.to(weight)
