r"""How strong a ridge should be: by the error on images that were not fitted to.

The kernel is $W_\lambda = W_0 + (\Sigma + \lambda I)^{-1} (C - \Sigma W_0)$ with $\Sigma$ the covariance of the samples
x, C their covariance with the targets y, and $W_0$ the kernel before. A small $\lambda$ trusts the samples, a large one
the kernel before. Patches of one image are alike, so the number of samples does not tell which is right; images that
were held out do. Only one number for each $\lambda$ is wanted, the error summed over outputs; 256 random
combinations of them tell it nearly as well as all (Johnson and Lindenstrauss), in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from slimilar.reconstruction.solvers import SampleMoments, level
from slimilar.utils.precision import exact

_GRID = tuple(10.0**e for e in (-4, -3, -2, -1, 0, 1, 2))  # of the mean variance
_START = 1  # in the grid: where the search begins
_AS_GOOD = 0.01  # of what a fit gains: ridges that err no more than this above the best
_COMBINATIONS = 256  # of outputs, instead of more: the same error within a few per cent


@dataclass(frozen=True, eq=False)
class Statistics:
    """Means and covariances of samples x and targets y: all that least squares needs."""

    count: int
    mean: Tensor
    target: Tensor  # the mean of y
    covariance: Tensor
    cross: Tensor  # covariance of x with y

    @staticmethod
    def of(moments: SampleMoments) -> Statistics:
        """Return the statistics of all rows that were added."""
        found = moments.mean(), moments.mean_beside(), moments.covariance(), moments.cross()
        return Statistics(moments.count, *found)

    def only(self, unknowns: Tensor) -> Statistics:
        """Return the statistics of some of the numbers in each sample."""
        if len(unknowns) == len(self.mean):
            return self
        inside = self.covariance[unknowns][:, unknowns]
        return Statistics(self.count, self.mean[unknowns], self.target, inside, self.cross[unknowns])

    def combined(self, mix: Tensor) -> Statistics:
        """Return the statistics with combinations of the targets instead of them."""
        return replace(self, target=self.target @ mix, cross=self.cross @ mix)

    def single(self) -> Statistics:
        """Return the same numbers in float32."""
        parts = self.mean, self.target, self.covariance, self.cross
        return Statistics(self.count, *(t.float() for t in parts))


def removed_channel_statistics(
    count: int, mean: Tensor, covariance: Tensor, kept: Tensor, removed: Tensor
) -> Statistics:
    """Return the statistics with which removed channels are regressed on kept ones."""
    inside, cross = covariance[kept][:, kept], covariance[kept][:, removed]
    return Statistics(count, mean[kept], mean[removed], inside, cross)


def pooled(a: Statistics, b: Statistics) -> Statistics:
    """Return the statistics of two sets of samples together."""
    count = a.count + b.count
    p, q = a.count / count, b.count / count
    shift, rise = b.mean - a.mean, b.target - a.target
    return Statistics(
        count,
        p * a.mean + q * b.mean,
        p * a.target + q * b.target,
        (p * a.covariance).add_(b.covariance, alpha=q).addr_(shift, shift, alpha=p * q),
        (p * a.cross).add_(b.cross, alpha=q).addr_(shift, rise, alpha=p * q),
    )


def merged(a: SampleMoments, b: SampleMoments) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the rows of both."""
    found = pooled(Statistics.of(a), Statistics.of(b))
    return found.mean, found.covariance


@dataclass(frozen=True, eq=False)
class RidgeSearch:
    """What tells how well a ridge does: statistics to fit to, others to measure on, the kernel before, and weights."""

    fit: Statistics
    held_out: Statistics
    prior: Tensor
    weight: Tensor  # of each output

    def combined(self) -> RidgeSearch:
        """Return random combinations of the outputs, with the same error in expectation; few outputs stay."""
        outputs = self.prior.shape[1]
        if outputs <= _COMBINATIONS:
            return self
        generator = torch.Generator().manual_seed(0)  # the same for all, so that they can be compared
        mix = torch.randn(outputs, _COMBINATIONS, generator=generator, dtype=torch.float64).to(self.prior)
        mix *= (self.weight.expand(outputs).to(mix) / _COMBINATIONS).sqrt()[:, None]
        return RidgeSearch(
            self.fit.combined(mix), self.held_out.combined(mix), self.prior @ mix, mix.new_ones(_COMBINATIONS)
        )

    def single(self) -> RidgeSearch:
        """Return the same in float32, in which a grid of powers of ten can be told apart."""
        return RidgeSearch(self.fit.single(), self.held_out.single(), self.prior.float(), self.weight.float())

    def error(self, strength: float) -> float:
        """Return the held-out error of the kernel that is fitted with a ridge; infinite where that is too weak."""
        inside = self.fit.covariance.clone()
        inside.diagonal().add_(level(self.fit.covariance, strength))
        factor, info = torch.linalg.cholesky_ex(inside)
        if int(info):  # rounding has left no positive definite matrix
            return float("inf")
        return self._error(self.prior + torch.cholesky_solve(self._missing, factor))

    @cached_property
    def _missing(self) -> Tensor:
        return self.fit.cross - self.fit.covariance @ self.prior

    def gain(self, error: float) -> float:
        """Return by how much a fit of this error is better than the kernel before."""
        return self._error(self.prior) - error

    def _error(self, kernel: Tensor) -> float:
        """Return the mean squared error up to the variance of the targets, which no kernel changes."""
        held_out = self.held_out
        spread = (kernel * (held_out.covariance @ kernel - 2 * held_out.cross)).sum(0)
        constant = self.fit.target - self.fit.mean @ kernel
        bias = held_out.target - held_out.mean @ kernel - constant
        return float((self.weight * (spread + bias.square())).sum())


def held_out_strength(
    fit: Statistics, held_out: Statistics, prior: Tensor, weight: Tensor
) -> tuple[float, float]:
    r"""Return the $\lambda$, relative to the mean variance, whose kernel errs least on held-out samples, and its error.

    Outputs count by `weight`. The error is up to the variance of the targets, which no kernel changes.
    """
    return _descend(RidgeSearch(fit, held_out, prior, weight).combined().single().error)


def weakest_strength(
    fit: Statistics, held_out: Statistics, prior: Tensor, weight: Tensor
) -> tuple[float, float]:
    r"""Return the weakest $\lambda$ that errs about as little on held-out samples as the best, and the best error.

    A ridge pulls every layer the same way, so its bias adds up over the layers; the noise of a weaker one does not.
    """
    search = RidgeSearch(fit, held_out, prior, weight).combined().single()
    error_of = cache(search.error)  # the descent has been at some of the weaker ones
    strength, error = _descend(error_of)
    allowed = error + _AS_GOOD * search.gain(error)
    place = _GRID.index(strength)
    while place and error_of(_GRID[place - 1]) <= allowed:
        place -= 1
    return _GRID[place], error


def held_out_error(
    fit: Statistics, held_out: Statistics, prior: Tensor, weight: Tensor, strength: float
) -> float:
    """Return the held-out error of the kernel that is fitted with a ridge; infinite where that is too weak."""
    return RidgeSearch(fit, held_out, prior, weight).combined().single().error(strength)


def leave_one_out_strength(x: Tensor, y: Tensor, prior: Tensor, weight: Tensor) -> float:
    r"""Return the $\lambda$, relative to the mean variance, with the least leave-one-out error; one row an image."""
    x, y = exact(x), exact(y)
    scale = float(x.var(0, correction=0).mean())

    def error(strength: float) -> float:
        return float((weight * leave_one_out(x, y, prior, strength * scale).square().mean(0)).sum())

    return _descend(error)[0]


def leave_one_out(x: Tensor, y: Tensor, prior: Tensor, strength: float) -> Tensor:
    r"""Return what is missing at every sample when the ridge is fitted to all others: $(y_i - \hat y_i) / (1 - h_i)$.

    $\lVert XW + b - Y \rVert^2 + n \lambda \lVert W - W_0 \rVert^2$ with a constant b that costs nothing; with X and
    $R = Y - X W_0$ centred, $K = X X^\top$ and n samples, the fit is $H R$ with $H = K (K + n \lambda I)^{-1}$, and the
    leverage is $h_i = H_{ii} + 1 / n$. The penalty $n \lambda$ stays as it is when a sample leaves.

    >>> x, y = torch.tensor([[0.0], [1.0], [2.0]]).double(), torch.tensor([[0.0], [1.0], [5.0]]).double()
    >>> leave_one_out(x, y, torch.zeros(1, 1).double(), strength=0.0).round(decimals=6).T.tolist()
    [[3.0, -1.5, 3.0]]
    """
    count = len(x)
    centred, missing = x - x.mean(0), y - x @ prior
    missing = missing - missing.mean(0)
    gram = centred @ centred.T
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    share = torch.where(values > 1e-12 * values.max(), values / (values + count * strength), 0.0)
    given = (vectors * share) @ (vectors.T @ missing)
    leverage = (vectors.square() @ share) + 1 / count
    found: Tensor = (missing - given) / (1 - leverage).clamp_min(1e-9)[:, None]
    return found


def _descend(error: Callable[[float], float]) -> tuple[float, float]:
    """Walk along the grid from its usual place while the error falls, to stronger ridges or else to weaker ones."""
    at = cache(lambda i: error(_GRID[i]))
    best = _START
    for step in (1, -1):
        while 0 <= best + step < len(_GRID) and at(best + step) < at(best):
            best += step
        if best != _START:
            break
    return _GRID[best], at(best)
