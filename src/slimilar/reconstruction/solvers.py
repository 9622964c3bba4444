r"""The linear algebra of standing in for a channel: ridge regression on covariances, and backward elimination.

Pure functions on tensors. A covariance is of the channels that a consumer sees; its kernels enter as
$B = \sum_{o, t} w_{\cdot o t} w_{\cdot o t}^\top$, the weight that the consumer gives to an error in each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.errors import InvalidInput, Option
from slimilar.utils.precision import exact, exact_device

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGE = 1e-4  # of the mean variance: what rounding and a finite sample leave uncertain anyway
_BLOCK = 256  # of columns of a Gram matrix, which is symmetric: half of its blocks will do
_AT_ONCE = 32  # of so many channels one leaves at a time; of twice as many, two


class SampleMoments:
    """Mean and covariance of rows that come in batches, in one pass; held are sums and the last few rows.

    With `beside`, of so many numbers that belong to each row: their mean, and their covariance with the rows.

    >>> seen = SampleMoments(2, beside=1)
    >>> seen.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0], [2.0]]))
    >>> seen.mean().tolist(), seen.covariance().tolist(), seen.cross().tolist()
    ([2.0, 0.0], [[1.0, 0.0], [0.0, 0.0]], [[0.5], [0.0]])
    """

    def __init__(self, size: int, beside: int = 0) -> None:
        self.size, self.count = size, 0
        self._waiting: list[tuple[Tensor, ...]] = []
        self._first: tuple[Tensor, ...] = ()  # sums of differences from a typical row cancel less
        self._total = torch.zeros(size + beside, dtype=torch.float64)
        self._gram = torch.zeros(0, size + beside, dtype=torch.float64)  # only blocks from the diagonal on

    def add(self, rows: Tensor, *beside: Tensor) -> None:
        """Take in rows of shape (samples, size), and what is beside them."""
        self._waiting.append((rows, *beside))
        if sum(len(parts[0]) for parts in self._waiting) >= self.size:  # a few rows at a time cost as much
            self._take()

    def _take(self) -> None:
        if not self._waiting:
            return
        parts = [
            torch.cat(found) if len(found) > 1 else found[0] for found in zip(*self._waiting, strict=True)
        ]
        self._waiting.clear()
        if not self._first:
            self._first = tuple(part.mean(0) for part in parts)
        parts = [part - at for part, at in zip(parts, self._first, strict=True)]
        rows = parts[0]
        if not self.count:  # now it is known where the rows are
            self._total = self._total.to(exact_device(rows.device))
            self._gram = self._total.new_zeros(self.size, self._gram.shape[1])
        self.count += len(rows)
        self._total += exact(torch.cat([part.sum(0) for part in parts]))
        for a in range(0, self.size, _BLOCK):
            self._gram[a : a + _BLOCK, a : self.size] += exact(rows[:, a : a + _BLOCK].T @ rows[:, a:])
        for beside in parts[1:]:
            self._gram[:, self.size :] += exact(rows.T @ beside)

    def _mean(self) -> Tensor:
        self._take()
        return exact(torch.cat(self._first)) + self._total / self.count

    def mean(self) -> Tensor:
        """Return the mean of all rows."""
        return self._mean()[: self.size]

    def mean_beside(self) -> Tensor:
        """Return the mean of what is beside them."""
        return self._mean()[self.size :]

    def covariance(self) -> Tensor:
        """Return the covariance of all rows."""
        self._take()
        centre = (self._total / self.count)[: self.size]
        found = self._gram.new_empty(self.size, self.size)
        for a in range(0, self.size, _BLOCK):
            for b in range(a, self.size, _BLOCK):  # small blocks are turned round quickly
                here, there = slice(a, a + _BLOCK), slice(b, min(b + _BLOCK, self.size))
                block = (self._gram[here, there] / self.count).addr_(centre[here], centre[there], alpha=-1)
                found[here, there] = block
                found[there, here] = block.T
        return found

    def cross(self) -> Tensor:
        """Return the covariance of the rows with what is beside them."""
        self._take()
        centre = self._total / self.count
        return self._gram[:, self.size :] / self.count - torch.outer(centre[: self.size], centre[self.size :])


def level(covariance: Tensor, strength: float = RIDGE) -> float:
    """Return a share of the mean variance."""
    return strength * max(float(covariance.diagonal().mean()), torch.finfo(torch.float64).tiny)


def rounding(*covariances: Tensor) -> float:
    """Return what rounding leaves in covariances that should be zero: channels that do not vary explain nothing."""
    return max(
        (torch.finfo(c.dtype).eps * float(c.abs().max()) for c in covariances if c.numel()), default=0.0
    )


def ridge(covariance: Tensor, strength: float = RIDGE) -> Tensor:
    """Return a covariance with a little added to its diagonal, so that it can be inverted."""
    found = covariance.clone()
    found.diagonal().add_(level(covariance, strength))
    return found


def positive_definite(covariance: Tensor, amount: float) -> float:
    """Add an amount to the diagonal, in place, more where rounding asks for it; return what was added.

    >>> matrix = torch.zeros(2, 2, dtype=torch.float64)
    >>> positive_definite(matrix, 0.5), matrix.diagonal().tolist()
    (0.5, [0.5, 0.5])
    """
    if not len(covariance):
        return amount
    covariance.diagonal().add_(amount)
    least = torch.finfo(covariance.dtype).eps * float(covariance.abs().max())  # rounding takes off as much
    for _ in range(16):
        if not int(torch.linalg.cholesky_ex(covariance).info):
            break
        more = max(9 * amount, least)
        covariance.diagonal().add_(more)
        amount += more
    return amount


def mixing(covariance: Tensor, kept: Tensor, removed: Tensor, strength: float = RIDGE) -> Tensor:
    r"""Return the best linear stand-in of each removed channel: $M = \Sigma_{RK} (\Sigma_{KK} + \lambda I)^{-1}$.

    >>> x = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    >>> m = mixing(torch.cov(x.T, correction=0), torch.tensor([0, 1]), torch.tensor([2]), strength=0.0)
    >>> m.round(decimals=6).tolist()
    [[1.0, 1.0]]
    """
    inside = covariance[kept][:, kept]
    if not bool(torch.isfinite(inside).all()):
        raise InvalidInput(
            "the activations that consumers are fitted to must be finite, got infinite numbers or NaN: pass images "
            "that are preprocessed as in training, or ",
            Option("reconstruction", "none"),
        )
    positive_definite(inside, max(level(inside, strength), rounding(covariance)))
    factor = torch.linalg.cholesky(inside)
    return torch.cholesky_solve(covariance[kept][:, removed], factor).T


def least_squares(covariance: Tensor, cross: Tensor, prior: Tensor, strength: float) -> Tensor:
    r"""Return $\arg\min_W \lVert XW - Y \rVert^2 / n + \lambda \lVert W - W_0 \rVert^2$ for centred X and Y.

    `covariance` is of X, `cross` of X with Y, `prior` is $W_0$, and $\lambda$ is `strength` times X's mean variance.
    """
    factor = torch.linalg.cholesky(ridge(covariance, strength))
    return prior + torch.cholesky_solve(cross - covariance @ prior, factor)


@dataclass(frozen=True, eq=False)
class Elimination:
    """The order in which units leave, and the error at the consumers after each step, summed up."""

    removed: Ints
    error: Floats


def backward_elimination(
    covariances: Sequence[Tensor],
    kernels: Sequence[Tensor],
    units: Sequence[Ints],
    count: int,
    free: Ints,
    steps: int | None = None,
) -> Elimination:
    r"""Remove, again and again, the unit that the others can best stand in for.

    For each consumer, with $Q = \Sigma^{-1}$ over what is left and B its kernels (both change as channels leave),
    channel i adds the error $B_{ii} / Q_{ii}$: its residual variance given the others, times the weight its consumers
    give it. Then $B$ takes in the stand-ins and $Q$ loses i. `units[r][p]` is the unit at position p of consumer r.
    All that are free leave, or the first `steps`.
    """
    steps = len(free) if steps is None else steps
    if steps == 0:
        return Elimination(np.empty(0, np.int64), np.empty(0))
    precisions = [torch.linalg.inv(ridge(c)).cpu().numpy() for c in covariances]
    weights = [b.double().cpu().numpy().copy() for b in kernels]
    alive = np.ones(count, np.bool_)
    open_units = np.zeros(count, np.bool_)
    open_units[free] = True
    order, errors, total = [], [], 0.0
    for _ in range(steps):
        cost = np.zeros(count)
        for q, b, u in zip(precisions, weights, units, strict=True):
            np.add.at(cost, u[u >= 0], (np.diagonal(b) / np.maximum(np.diagonal(q), 1e-300))[u >= 0])
        cost[~(open_units & alive)] = np.inf
        worst = int(np.argmin(cost))
        total += float(cost[worst])
        alive[worst] = False
        order.append(worst)
        errors.append(total)
        for r, u in enumerate(units):
            for p in np.flatnonzero(u == worst):
                _eliminate(precisions[r], weights[r], int(p))
    return Elimination(np.array(order, np.int64), np.array(errors))


def _eliminate(q: Floats, b: Floats, i: int) -> None:
    """Take channel i out of a precision matrix and a kernel matrix, in place."""
    stand_in = -q[i] / q[i, i]
    stand_in[i] = 0.0
    # W_j += s_j W_i for all j, hence B += s b_i^T + b_i s^T + B_ii s s^T = s u^T + u s^T, written in one pass
    half = b[:, i] + b[i, i] / 2 * stand_in
    pair = torch.from_numpy(np.stack([stand_in, half]))
    torch.from_numpy(b).addmm_(pair.T, pair.flip(0))
    row = torch.from_numpy(q[i].copy())
    torch.from_numpy(q).addr_(row, row, alpha=-1 / q[i, i])
    b[i, :] = b[:, i] = 0.0
    q[i, :] = q[:, i] = 0.0
    q[i, i] = 1e300  # never chosen again, never divides by zero


@dataclass(frozen=True, eq=False)
class Blocks:
    """Channels in the order in which they left, what each added to the error, and the fits at some widths."""

    left: Tensor  # those that are left in the end
    removed: Ints
    cost: Floats
    fits: dict[
        int, tuple[Tensor, Tensor]
    ]  # number of channels -> which, and the kernel (unknowns, outputs) on them


def block_elimination(
    covariance: Tensor,
    cross: Tensor,
    taps: int,
    fisher: Tensor,
    width: int,
    fixed: Tensor,
    stops: Sequence[int] = (),
) -> Blocks:
    r"""Find, backwards, the `width` channels, of `taps` unknowns each, on which least squares loses least.

    With $A$ the covariance of all unknowns, $Q = A^{-1}$ and $W = Q C$ the kernel on those that are left, removing
    channel i adds the error $\operatorname{tr}(W_i^\top Q_{ii}^{-1} W_i)$, outputs weighted by `fisher`; then
    $W \leftarrow W - Q_{:i} Q_{ii}^{-1} W_i$ and $Q \leftarrow Q - Q_{:i} Q_{ii}^{-1} Q_{i:}$: the fit without i.
    Several leave at a time while many have to. `fixed` marks channels that stay, `stops` widths to tell the fit at.

    >>> a = torch.eye(4, dtype=torch.float64)
    >>> wanted = a @ torch.tensor([[0.1], [2], [0.2], [1]], dtype=torch.float64)
    >>> found = block_elimination(a, wanted, 1, torch.ones(1), 2, torch.zeros(4, dtype=torch.bool))
    >>> found.left.tolist(), found.removed.tolist(), found.cost.round(2).tolist()
    ([1, 3], [0, 2], [0.01, 0.04])
    """
    q = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    w = q @ cross
    left = torch.arange(len(covariance) // taps, device=covariance.device)
    fixed, fisher = fixed.to(left.device), fisher.to(covariance)
    removed: list[int] = []
    costs: list[float] = []
    fits = {}
    while True:
        n = len(left)
        if n in stops:
            order = left.argsort()
            fits[n] = (left[order].cpu(), w[unknowns_of(order, taps)].float())
        if n <= width:
            return Blocks(left.sort().values.cpu(), np.array(removed, np.int64), np.array(costs), fits)
        cost = _costs(q, w, taps, fisher)
        cost[fixed[left]] = torch.inf
        most = n - max((s for s in (*stops, width) if s < n), default=width)
        order = left.argsort()  # of equal ones the first leaves
        leave = order[cost[order].argsort(stable=True)][: max(1, min(most, n // _AT_ONCE))]
        removed += left[leave].tolist()
        costs += cost[leave].tolist()
        q, w, left = _without(q, w, left, leave, taps)


def _costs(q: Tensor, w: Tensor, taps: int, fisher: Tensor) -> Tensor:
    r"""Return $\operatorname{tr}(Q_{ii}^{-1} W_i H W_i^\top)$ of every channel i."""
    n = len(q) // taps
    blocks = q.unflatten(0, (n, taps)).unflatten(2, (n, taps)).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    kernels = w.reshape(n, taps, -1)
    found: Tensor = torch.linalg.solve(blocks, (kernels * fisher) @ kernels.mT)
    return found.diagonal(dim1=1, dim2=2).sum(1)


def _without(q: Tensor, w: Tensor, left: Tensor, leave: Tensor, taps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, W and the channels without those at some positions, all in the memory of what was given.

    Those that leave change places with the last ones, so that the rest is a corner: nothing else is moved.
    """
    n, rest = len(left), len(left) - len(leave)
    gone = torch.zeros(n, dtype=torch.bool, device=left.device)
    gone[leave] = True
    front, back = gone[:rest].nonzero()[:, 0], rest + (~gone[rest:]).nonzero()[:, 0]
    here, there = torch.cat([front, back]), torch.cat([back, front])
    left[here] = left[there]
    here, there = unknowns_of(here, taps), unknowns_of(there, taps)
    q[here] = q[there]
    q[:, here] = q[:, there]
    w[here] = w[there]
    k = rest * taps
    share = torch.linalg.solve(q[k:, k:], q[k:, :k]).T
    corner = q[:k, :k].addmm_(share, q[k:, :k], alpha=-1)
    return corner, w[:k].addmm_(share, w[k:], alpha=-1), left[:rest]


def unknowns_of(channels: Tensor, taps: int) -> Tensor:
    """Return where the unknowns of some channels stand."""
    return (channels[:, None] * taps + torch.arange(taps, device=channels.device)).flatten()
