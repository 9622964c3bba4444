r"""Distances of channels, from batch-norm parameters (Eq. 4) or activations (Eq. 1), and the bound of Proposition 2.

Works on tensors and arrays only, not on modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial.distance import cdist, is_valid_y, squareform
from torch import Tensor

from slimilar.errors import InvalidInput

Floats = npt.NDArray[np.float64]
Distances = TypeVar("Distances", Tensor, Floats)  # a matrix, or a vector of the pairs i < j

# float32 parameters have about seven digits: a smaller relative range is rounding, not training.
_SPREAD = 1e-6
# Rounding error of a float64 Gram matrix of many samples, and of a float64 mean, relative to their size.
_GRAM_NOISE, _MEAN_NOISE = 1e-13, 1e-14
_BLOCK = 1 << 15  # distances computed at once: as many as fit in the processor's cache


def channel_distance(beta: Tensor, gamma: Tensor) -> Tensor:
    r"""Return the expected squared difference of every two channels after batch norm (Eq. 4).

    With $y_i \sim (\beta_i, \gamma_i^2)$, independent across channels, and $d_{ii} = 0$,
    $$d_{ij} = E[(y_i - y_j)^2] = (\beta_i - \beta_j)^2 + \gamma_i^2 + \gamma_j^2.$$

    The result is float64 on the CPU, where it is clustered, so half-precision networks lose no digits.

    >>> channel_distance(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0])).tolist()
    [[0.0, 14.0], [14.0, 0.0]]
    """
    if beta.ndim != 1 or beta.shape != gamma.shape:
        got = f"{tuple(beta.shape)} and {tuple(gamma.shape)}"
        raise InvalidInput(f"beta and gamma must both have shape (channels,), got {got}")
    beta, gamma = float64(beta), float64(gamma)
    if not (beta.isfinite().all() and gamma.isfinite().all()):
        raise InvalidInput("beta and gamma must be finite, got NaN or infinity; has training diverged?")
    variance = gamma.square()
    spread = variance[:, None] + variance  # summed first, so that d is exactly symmetric
    return (beta[:, None] - beta).square_().add_(spread).fill_diagonal_(0)


def channel_pairs(beta: Tensor, gamma: Tensor) -> Floats:
    r"""Return the distances of Eq. 4 for the pairs $i < j$, row by row, as SciPy's `pdist` does.

    Half the memory of the matrix. With `beta` and `gamma` of shape (batch norms, channels), the sum over batch norms.

    >>> channel_pairs(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([1.0, 3.0, 0.0])).tolist()
    [14.0, 5.0, 9.0]
    """
    means, spreads = float64(torch.atleast_2d(beta)), float64(torch.atleast_2d(gamma))
    if means.shape != spreads.shape:
        got = f"{tuple(beta.shape)} and {tuple(gamma.shape)}"
        raise InvalidInput(f"beta and gamma must have the same shape, got {got}")
    return pair_distances(means.T.numpy(), spreads.square().sum(0).numpy())


def pair_distances(means: Floats, variance: Floats, range_: tuple[float, float] | None = None) -> Floats:
    """Return the pair distances from means (channels, batch norms) and each channel's sum of variances.

    Given the range of all distances of a layer, they are mapped to [0, 1] as `normalise` does.
    """
    n = len(variance)
    found, at = np.empty(n * (n - 1) // 2), 0
    step = max(1, _BLOCK // max(1, n))
    for start in range(0, n - 1, step):
        rows = slice(start, min(start + step, n - 1))
        block = _gaps(means, rows)
        block += variance[rows, None]
        block += variance[start + 1 :]
        if range_ is not None:
            block -= range_[0]
            np.maximum(block, 0, out=block)  # a permutation of the channels changes the order of summation
            block /= range_[1] - range_[0]
        for i, row in enumerate(block):
            end = at + len(row) - i
            found[at:end] = row[i:]
            at = end
    return found


def _gaps(means: Floats, rows: slice) -> Floats:
    """Return squared differences between the means of `rows` and of all channels after the first of them.

    `means` has shape (channels, batch norms); these are summed over in order.
    """
    others = means[rows.start + 1 :]
    if means.shape[1] > 1:
        found: Floats = cdist(means[rows], others, "sqeuclidean")
        return found
    return np.square(means[rows] - others[:, 0])  # the same; for one batch norm this is faster


def activation_distance(batches: Tensor | Iterable[Tensor]) -> Tensor:
    r"""Return the mean squared difference of every two channels on given activations (Eq. 1).

    $$d_{ij} = \frac{1}{n} \lVert A^{(i)} - A^{(j)} \rVert_2^2, \qquad n = H \times W \times B.$$

    Takes one tensor (batch, channels, ...) or an iterable of such batches, which is read once. Only a
    channels x channels matrix is kept. The result is never negative, and exactly zero for equal channels.

    >>> activation_distance(torch.tensor([[1.0, 1.0, 4.0], [2.0, 2.0, 6.0]])).tolist()
    [[0.0, 0.0, 12.5], [0.0, 0.0, 12.5], [12.5, 12.5, 0.0]]
    """
    mean, covariance = _mean_and_covariance([batches] if isinstance(batches, Tensor) else batches)
    gap = (mean[:, None] - mean).square()
    power = covariance.diagonal()
    spread = power[:, None] + power
    # Rounding may leave a small positive or negative distance between equal channels.
    noise = _GRAM_NOISE * spread + (_MEAN_NOISE * (mean[:, None].abs() + mean.abs())).square()
    distance = gap + (spread - (covariance + covariance.T))
    return distance.masked_fill(distance <= noise, 0.0).fill_diagonal_(0)


def _mean_and_covariance(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Accumulate both in one pass, shifted by the first batch's mean to avoid cancellation."""
    count, shift, total, gram = 0, torch.empty(0), torch.empty(0), torch.empty(0)
    for batch in batches:
        samples = _by_channel(batch)
        if count == 0:
            shift = samples.mean(dim=1, keepdim=True)
            total, gram = torch.zeros_like(shift), samples.new_zeros(len(samples), len(samples))
        if len(samples) != len(shift):
            raise InvalidInput(f"all batches must have {len(shift)} channels, got {len(samples)}")
        samples = samples - shift
        count += samples.shape[1]
        total += samples.sum(dim=1, keepdim=True)
        gram.addmm_(samples, samples.T)
    if count == 0:
        raise InvalidInput("activations must hold at least one batch, got none")
    offset = total / count
    return (shift + offset).squeeze(1), gram / count - offset @ offset.T


def _by_channel(batch: Tensor) -> Tensor:
    """Return activations (batch, channels, ...) as float64 (channels, samples)."""
    if not isinstance(batch, Tensor) or batch.ndim < 2 or batch.numel() == 0:
        got = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
        raise InvalidInput(f"activations must be a non-empty tensor (batch, channels, ...), got {got}")
    samples = float64(batch).movedim(1, 0).flatten(1)
    if not samples.isfinite().all():
        raise InvalidInput("activations must be finite, got NaN or infinity; has training diverged?")
    return samples


def is_uninformative(distance: Tensor | Floats) -> bool:
    """Return whether all distances are equal, so that they do not determine which channels to merge.

    True for an untrained batch norm (gamma = 1, beta = 0), and for fewer than three channels.

    >>> is_uninformative(channel_distance(torch.zeros(8), torch.ones(8)))
    True
    """
    return is_constant(*_range(checked_pairs(distance)))


def normalise(distance: Distances) -> Distances:
    r"""Return the distances mapped to [0, 1], with minimum and maximum over $i \ne j$.

    $$d_{ij} \leftarrow (d_{ij} - d_{min}) / (d_{max} - d_{min}), \qquad d_{ii} = 0.$$

    >>> normalise(torch.tensor([[0.0, 2.0, 4.0], [2.0, 0.0, 3.0], [4.0, 3.0, 0.0]])).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 0.5], [1.0, 0.5, 0.0]]
    """
    low, high = _range(checked_pairs(distance))
    if is_constant(low, high):
        raise InvalidInput(
            "distances must differ from one another to be normalised, got a constant matrix; "
            "check is_uninformative() first and keep such a layer whole"
        )
    if isinstance(distance, Tensor):
        return (float64(distance) - low).div_(high - low).clamp_(0, 1).fill_diagonal_(0)
    scaled = distance - low
    scaled /= high - low
    return np.clip(scaled, 0, 1, out=scaled)


def is_constant(low: float, high: float) -> bool:
    """Return whether the distances in a range are equal up to rounding."""
    return high - low <= _SPREAD * high


def _range(pairs: Floats) -> tuple[float, float]:
    """Return the smallest and the largest distance."""
    return (float(pairs.min()), float(pairs.max())) if len(pairs) else (0.0, 0.0)


def checked_pairs(distance: Tensor | Floats) -> Floats:
    """Return the distances of all pairs i < j from such a vector or a matrix, after checking it."""
    if isinstance(distance, Tensor):
        pairs: Floats = squareform(checked_matrix(distance).numpy(), checks=False)
        return pairs
    if distance.ndim != 1 or (len(distance) and not is_valid_y(distance)):
        raise InvalidInput(
            f"distances must be a matrix or one number for every pair, got shape {distance.shape}"
        )
    if len(distance) and not (distance.min() >= 0 and distance.max() < math.inf):
        raise InvalidInput("distances must be finite and not negative, got NaN, infinity or a negative value")
    return distance


def checked_matrix(distance: Tensor) -> Tensor:
    """Return a checked distance matrix in float64."""
    if distance.ndim != 2 or distance.shape[0] != distance.shape[1] or len(distance) == 0:
        got = tuple(distance.shape)
        raise InvalidInput(f"distance must be a matrix of shape (channels, channels), got {got}")
    distance = float64(distance)
    low, high = torch.aminmax(distance)  # NaN propagates
    if not (low >= 0 and high.isfinite()):
        raise InvalidInput("distance must be finite and not negative, got NaN, infinity or a negative value")
    if not torch.equal(distance, distance.T) and (distance - distance.T).abs().max() > _SPREAD * high:
        raise InvalidInput("distance must be symmetric, got d[i, j] != d[j, i]")
    return distance


def float64(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


# --- the bound of Proposition 2 --------------------------------------------------------------------


class ShiftBound(NamedTuple):
    """Proposition 2 for each (channel of the next layer, removed channel); both of shape (out, in)."""

    factor: Tensor
    bound: Tensor


def shift_bound(weight: Tensor, distance: Tensor, n_in: int, n_out: int) -> ShiftBound:
    r"""Bound the change of the next layer when channel i is removed and its nearest channel represents it (Prop. 2).

    With the removed channel's kernel added to that of its representative j,
    $$\frac{1}{n_{l+1}} \lVert (h(N_i) - h(N_j)) * W_{ic} \rVert^2 \le \lambda_{ci} \min_{j \ne i} d_{ij},
    \qquad \lambda_{ci} = \frac{n_l}{n_{l+1}} K^2 \lVert W_{ic} \rVert_2^2.$$

    `weight` is the next layer's (out, in, K, K), `distance` that of the normalised channels, and `n_in`,
    `n_out` the activations of one channel (H x W x B) before and after it. It holds for zero padding, any
    stride or dilation, and every activation h of slope in [0, 1].

    >>> factor, bound = shift_bound(torch.ones(1, 2, 1, 1), torch.tensor([[0.0, 3.0], [3.0, 0.0]]), 16, 4)
    >>> factor.tolist(), bound.tolist()
    ([[4.0, 4.0]], [[12.0, 12.0]])
    """
    distance = checked_matrix(distance)
    if weight.ndim < 2 or weight.shape[1] != len(distance) or len(distance) < 2:
        got = f"{tuple(weight.shape)} and {tuple(distance.shape)}"
        raise InvalidInput(f"weight must be (out, in, ...) and distance (in, in) with in > 1, got {got}")
    if n_in <= 0 or n_out <= 0:
        raise InvalidInput(f"n_in and n_out must be positive, got {n_in} and {n_out}")
    area = math.prod(weight.shape[2:])
    factor = n_in / n_out * area * float64(weight).reshape(*weight.shape[:2], area).square().sum(2)
    nearest = distance.clone().fill_diagonal_(torch.inf).min(dim=1).values
    return ShiftBound(factor, factor * nearest)
