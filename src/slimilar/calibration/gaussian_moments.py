r"""Mean, variance and covariance of an activation of Gaussian channels.

After batch norm a channel is taken as $x \sim N(\beta, \gamma^2)$. What its consumers see is $f(x)$, and what a
removed channel leaves behind is first of all $E[f(x)]$. Piecewise polynomials (ReLU, ReLU6, leaky ReLU,
hardtanh, hardsigmoid, hardswish) have closed forms; the others are integrated to ten digits.

>>> mean, var = moments("relu", mean=[0.0, 3.0], std=[1.0, 0.0])
>>> mean.tolist(), var.tolist()
([0.3989422804014327, 3.0], [0.3408450569081046, 0.0])

Everything is float64 on the CPU. Of `std` only the size counts, so gamma can be passed as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.special import owens_t, roots_sh_jacobi
from torch import Tensor

from slimilar.calibration.activations import Option, Shape, shape_of
from slimilar.errors import InvalidInput
from slimilar.graph.activations import plain_name
from slimilar.utils.symmetric import symmetric

Values: TypeAlias = Tensor | np.ndarray | list[float] | float

_REACH = 9.0  # a Gaussian has 2e-19 of its mass beyond
_POINTS = 16  # Gauss-Legendre nodes in each panel
_DEGREE = 32  # terms of the expansion that covariance() sums
_NODES, _WEAK = 6, 0.5  # of the integral along correlations, and up to which of them it is taken


class MeanAndVariance(NamedTuple):
    """Mean and variance, each of the channels' shape."""

    mean: Tensor
    var: Tensor


# --- one channel -----------------------------------------------------------------------------------


def moments(activation: str, mean: Values, std: Values, **options: Option) -> MeanAndVariance:
    r"""Return $E[f(x)]$ and $Var[f(x)]$ for $x \sim N(mean, std^2)$, channel by channel.

    Options are PyTorch's own: `negative_slope`, `min_val`, `max_val`, `alpha`, `beta`, `approximate`.

    >>> moments("hardtanh", 0.0, 1.0, min_val=-2, max_val=2).mean.item()
    0.0
    """
    shape = shape_of(activation, options)
    mu, sigma = _channels(mean, std)
    if shape.pieces:
        return _closed_form(shape, mu, sigma)
    z, weight = _quadrature(shape.breaks, mu, sigma)
    return _weighted(shape, mu, sigma, z, weight)


def max_moments(activation: str, mean: Values, std: Values, k: float, **options: Option) -> MeanAndVariance:
    r"""Return the moments of the largest of k activations: a channel after max pooling over k places.

    The places are taken as independent, which neighbours are not, so this is the upper end: the truth lies
    between `moments` (all places alike, k = 1) and this; k need not be whole. A monotone activation of the
    largest is the largest activation, so that the density of the largest Gaussian, $k \varphi \Phi^{k-1}$, is
    all it takes.

    >>> round(max_moments("identity", 0.0, 1.0, k=2).mean.item(), 12)  # 1 / sqrt(pi)
    0.564189583548
    """
    if k < 1:
        raise InvalidInput(f"k must be a number of places of at least 1, got {k}")
    shape = shape_of(activation, options)
    mu, sigma = _channels(mean, std)
    z, weight = _quadrature(shape.breaks, mu, sigma)
    if shape.monotone:
        weight = k * weight * _below(z) ** (k - 1)
    else:
        weight = _weight_of_largest(shape.function(mu[..., None] + sigma[..., None] * z), weight, k)
    return _weighted(shape, mu, sigma, z, weight)


def _weight_of_largest(values: Tensor, weight: Tensor, k: float) -> Tensor:
    """Return how much of the largest of k falls on each node, for values in any order.

    The nodes stand for pieces of the distribution here, which is good to about four digits.
    """
    order = values.argsort(dim=-1, stable=True)
    below = weight.gather(-1, order).cumsum(-1).clamp(max=1) ** k
    return torch.zeros_like(weight).scatter(
        -1, order, below.diff(dim=-1, prepend=torch.zeros_like(below[..., :1]))
    )


def _channels(mean: Values, std: Values) -> tuple[Tensor, Tensor]:
    """Return mean and |std| as float64 tensors of one shape."""
    mu, sigma = (torch.as_tensor(x, dtype=torch.float64, device="cpu").detach() for x in (mean, std))
    if mu.shape != sigma.shape:
        got = f"{tuple(mu.shape)} and {tuple(sigma.shape)}"
        raise InvalidInput(f"mean and std must have the same shape, got {got}")
    if not (mu.isfinite().all() and sigma.isfinite().all()):
        raise InvalidInput("mean and std must be finite, got NaN or infinity; has training diverged?")
    return mu, sigma.abs()


def _closed_form(shape: Shape, mu: Tensor, sigma: Tensor) -> MeanAndVariance:
    """Sum the pieces of f(x) - f(mu): taken from there, nothing cancels when sigma is small beside mu."""
    width = torch.where(sigma > 0, sigma, 1.0)
    centre = shape.function(mu)
    edges = [torch.full_like(mu, x) for x in (-math.inf, *shape.breaks, math.inf)]
    first, second = torch.zeros_like(mu), torch.zeros_like(mu)
    for low, high, (constant, slope, curve) in zip(edges, edges[1:], shape.pieces, strict=False):
        part = _truncated((low - mu) / width, (high - mu) / width)
        q = (
            constant + (slope + curve * mu) * mu - centre,
            (slope + 2 * curve * mu) * width,
            curve * width**2,
        )
        first += sum(q[i] * part[i] for i in range(3))
        second += sum(q[i] * q[j] * part[i + j] for i in range(3) for j in range(3))
    spread = sigma > 0
    mean = torch.where(spread, centre + first, centre)
    return MeanAndVariance(mean, torch.where(spread, (second - first.square()).clamp(min=0), 0.0))


def _truncated(low: Tensor, high: Tensor) -> list[Tensor]:
    r"""Return $\int_{low}^{high} z^k \varphi(z) dz$ for k = 0 ... 4, by parts from k - 2."""
    # Of two nearly equal numbers near 1 the difference has few digits; so the upper tail is taken mirrored.
    mass = torch.where(low > 0, _below(-low) - _below(-high), _below(high) - _below(low))
    edge = [a - b for a, b in zip(_powers_times_density(low), _powers_times_density(high), strict=True)]
    second = mass + edge[1]
    return [mass, edge[0], second, 2 * edge[0] + edge[2], 3 * second + edge[3]]


def _powers_times_density(z: Tensor) -> list[Tensor]:
    """Return the density times 1, z, and its second and third power."""
    z = z.clamp(-40, 40)  # where the density is zero already, and no power is infinite yet
    found = [_density(z)]
    for _ in range(3):
        found.append(found[-1] * z)
    return found


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def _below(z: Tensor) -> Tensor:
    """Return the distribution function of a standard Gaussian."""
    below: Tensor = torch.special.ndtr(z)
    return below


def _quadrature(breaks: tuple[float, ...], mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes z and weights of a Gaussian, per channel, in panels that end where the activation bends.

    Gauss-Hermite would take fewer nodes for a narrow Gaussian and fail for a wide one.
    """
    bends = torch.tensor(breaks, dtype=torch.float64).expand(*mu.shape, len(breaks))
    local = (bends - mu[..., None]) / torch.where(sigma > 0, sigma, 1.0)[..., None]
    grid = torch.linspace(-_REACH, _REACH, 13, dtype=torch.float64).expand(*mu.shape, 13)
    ends = torch.cat([grid, local.clamp(-_REACH, _REACH)], dim=-1).sort(dim=-1).values
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(_POINTS))
    half = ends.diff(dim=-1)[..., None] / 2
    z = ends[..., :-1, None] + half * (nodes + 1)
    return z.flatten(-2), (half * weights * _density(z)).flatten(-2)


def _weighted(shape: Shape, mu: Tensor, sigma: Tensor, z: Tensor, weight: Tensor) -> MeanAndVariance:
    centre = shape.function(mu)
    values = shape.function(mu[..., None] + sigma[..., None] * z) - centre[..., None]
    mean = (weight * values).sum(-1)
    return MeanAndVariance(centre + mean, (weight * (values - mean[..., None]).square()).sum(-1))


# --- two channels ----------------------------------------------------------------------------------


def covariance(activation: str, mean: Values, std: Values, correlation: Tensor, **options: Option) -> Tensor:
    r"""Return $Cov[f(x_i), f(x_j)]$ of every two channels, given the correlation of $x_i$ and $x_j$.

    Exact for ReLU and identity, to the digits of the correlation. Otherwise by Mehler's formula, with $c_{ik}$ the
    Hermite coefficients of $f(\mu_i + \sigma_i z)$,
    $$Cov[f(x_i), f(x_j)] = \sum_{k \ge 1} \rho_{ij}^k c_{ik} c_{jk}.$$
    What the terms summed leave of the variances goes in a last one, so that the diagonal is exact and the
    matrix positive semidefinite whenever that of the correlations is.

    >>> covariance("relu", [0.0, 0.0], [1.0, 1.0], torch.eye(2)).diagonal().tolist()
    [0.3408450569081046, 0.3408450569081046]
    """
    shape = shape_of(activation, options)
    mu, sigma = _channels(mean, std)
    rho = _checked_correlation(correlation, mu)
    if plain_name(activation) == "relu":
        return _relu_covariance(mu, sigma, rho)
    return _mehler(shape, mu, sigma, rho)


def _mehler(shape: Shape, mu: Tensor, sigma: Tensor, rho: Tensor) -> Tensor:
    z, weight = _quadrature(shape.breaks, mu, sigma)
    var = _weighted(shape, mu, sigma, z, weight).var
    weighted = weight * (shape.function(mu[:, None] + sigma[:, None] * z) - shape.function(mu)[:, None])
    coefficients = _hermite_coefficients(weighted, z)
    rest = (var - coefficients.square().sum(0)).clamp(min=0).sqrt()
    series = list(reversed(torch.cat([coefficients, rest[None]]).to(rho)))

    def block(rows: slice, columns: slice) -> Tensor:
        r = rho[rows, columns]
        total = torch.zeros_like(r)
        for c in series:
            total.addr_(c[rows], c[columns]).mul_(r)
        return total

    return symmetric(len(mu), block).double().diagonal_scatter(var)


def _hermite_coefficients(weighted: Tensor, z: Tensor) -> Tensor:
    """Return the coefficients of every channel (degree, channel) by the normalised polynomials, from the first on."""
    before, hermite, found = torch.zeros_like(z), torch.ones_like(z), []
    for k in range(1, _DEGREE + 1):  # normalised, so that no factorial ever gets large
        before, hermite = hermite, (z * hermite - math.sqrt(k - 1) * before) / math.sqrt(k)
        found.append((weighted * hermite).sum(-1))
    return torch.stack(found)


def _relu_covariance(mu: Tensor, sigma: Tensor, rho: Tensor) -> Tensor:
    r"""Return the covariance of ReLUs: from independence on, along the correlation.

    With $a = \mu_i / \sigma_i$ and $b = \mu_j / \sigma_j$, the slope of $E[relu(x_i) relu(x_j)]$ in $\rho$ is
    $\sigma_i \sigma_j \Phi_2(a, b; \rho)$, whose slope is the density $\varphi_2$. Hence
    $$Cov = \sigma_i \sigma_j \Bigl(\rho\, \Phi(a) \Phi(b)
    + \int_0^\rho (\rho - r)\, \varphi_2(a, b; r)\, dr\Bigr).$$
    Six nodes give twelve digits up to correlations of 1/2; beyond, `relu_product` is the reference.
    """
    moving = sigma > 0
    a = torch.where(moving, mu / torch.where(moving, sigma, 1.0), 0.0)
    above, level = _below(a).to(rho), a.to(rho)

    def block(rows: slice, columns: slice) -> Tensor:
        r = rho[rows, columns]
        linear = r * above[rows, None] * above[columns]
        return linear.add_(_beyond_linear(level[rows, None], level[columns], r))

    found = symmetric(len(mu), block).double()
    strong = rho.abs() > _WEAK
    strong.fill_diagonal_(False)
    if len(some := strong.any(1).nonzero().flatten()):
        expected = moments("relu", a[some], torch.ones_like(a[some])).mean
        exact = _standard_relu_product(a[some], rho.double()[some][:, some]) - expected[:, None] * expected
        found[some[:, None], some] = torch.where(strong[some][:, some], exact, found[some][:, some])
    found *= sigma[:, None] * sigma
    return found.diagonal_scatter(moments("relu", mu, sigma).var)


def _beyond_linear(a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
    r"""Return $\int_0^\rho (\rho - r) \varphi_2(a, b; r) dr$ by Gauss-Jacobi quadrature; rho is at most 1/2."""
    product, squares = a * b, (a.square() + b.square()) / 2
    total = torch.zeros_like(rho)
    for node, weight in zip(*roots_sh_jacobi(_NODES, 2, 1), strict=True):
        r = rho * float(node)
        rest = torch.addcmul(torch.ones_like(r), r, r, value=-1).clamp_(min=1 - _WEAK**2)
        density = torch.addcmul(-squares, product, r).div_(rest).exp_().mul_(rest.rsqrt_())
        total.add_(density, alpha=float(weight))
    return total.mul_(rho).mul_(rho).div_(2 * math.pi)


def relu_product(mean: Values, std: Values, correlation: Tensor) -> Tensor:
    r"""Return $E[relu(x_i) relu(x_j)]$ of every two channels, in closed form.

    With $a = \mu_i / \sigma_i$, $b = \mu_j / \sigma_j$, $s = \sqrt{1 - \rho^2}$, $u = (a - \rho b) / s$ and
    $v = (b - \rho a) / s$, it is $\sigma_i \sigma_j$ times
    $$(ab + \rho) \Phi_2(a, b; \rho) + a \varphi(b) \Phi(u) + b \varphi(a) \Phi(v)
    + s \varphi(a) \varphi(v);$$
    for means of zero this is the arc-cosine kernel, $(s + \rho (\pi - \arccos \rho)) / 2 \pi$.

    >>> relu_product([0.0, 0.0], [1.0, 1.0], torch.tensor([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.5, 0.15915494309189535], [0.15915494309189535, 0.5]]
    """
    mu, sigma = _channels(mean, std)
    rho = _checked_correlation(correlation, mu).double()
    ratio = mu / torch.where(sigma > 0, sigma, 1.0)
    product = sigma[:, None] * sigma * _standard_relu_product(ratio, rho)
    expected, var = moments("relu", mu, sigma)
    still = sigma == 0
    product = torch.where(still[:, None] | still, expected[:, None] * expected, product)
    return product.diagonal_scatter(var + expected.square())


def _standard_relu_product(means: Tensor, rho: Tensor) -> Tensor:
    """Return E[relu(u) relu(v)] of every two channels of variance 1 and correlation rho."""
    a, b = means[:, None], means[None, :]
    rho = rho.clamp(-1 + 1e-12, 1 - 1e-12)  # its slope in rho is below 1: this moves it by 1e-12 at most
    s = ((1 - rho) * (1 + rho)).sqrt()
    v = (b - rho * a) / s
    leg = b * _density(a) * _below(v)  # the other one is the same for the two channels exchanged
    tails = leg + leg.T + s * _density(a) * _density(v)
    return ((a * b + rho) * _both_below(means, rho, s) + tails).clamp(min=0)


def _both_below(means: Tensor, rho: Tensor, s: Tensor) -> Tensor:
    """Return how likely both of every two correlated Gaussians are below their means, by Owen's T function."""
    means = torch.where(means == 0, 1e-300, means)  # on the axes the formula is a limit
    a, b = means[:, None], means[None, :]
    leg = _owens_t(a, (b - rho * a) / s / a)
    legs = leg + leg.T
    opposite = (a.sign() * b.sign() < 0).double()
    return (_below(a) + _below(b) - opposite) / 2 - legs


def _owens_t(h: Tensor, slope: Tensor) -> Tensor:
    values: Tensor = torch.from_numpy(owens_t(h.numpy(), slope.numpy()))
    return values


def _checked_correlation(correlation: Tensor, mu: Tensor) -> Tensor:
    """Return the correlation in its own precision, at least float32: more digits would double the time."""
    if mu.ndim != 1 or tuple(correlation.shape) != (len(mu), len(mu)):
        got = f"{tuple(mu.shape)} and {tuple(correlation.shape)}"
        raise InvalidInput(f"mean and correlation must be (channels,) and (channels, channels), got {got}")
    rho = correlation.detach().to(
        "cpu", torch.float32 if correlation.dtype == torch.float32 else torch.float64
    )
    if not float(rho.abs().max() if rho.numel() else 0) <= 1 + 1e-6:  # refuses NaN too
        raise InvalidInput(
            "correlation must lie in [-1, 1], got a value outside or NaN; divide by both std first"
        )
    return rho.clamp(-1, 1)
