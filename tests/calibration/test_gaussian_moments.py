"""Moments of activations, against scipy.integrate, Monte Carlo, and what must hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor
from torch.nn import functional as F

from slimilar.calibration.activations import SHAPES, supported
from slimilar.calibration.gaussian_moments import covariance, max_moments, moments, relu_product
from slimilar.errors import InvalidInput

FUNCTIONS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, threshold=1e9),
    "elu": F.elu,
    "gelu": F.gelu,
}
OPTIONS = [
    ("leaky_relu", {"negative_slope": 0.2}, lambda x: F.leaky_relu(x, 0.2)),
    ("hardtanh", {"min_val": -0.5, "max_val": 4.0}, lambda x: F.hardtanh(x, -0.5, 4.0)),
    ("gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    ("elu", {"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    ("elu", {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}, F.selu),
    ("softplus", {"beta": 3.0}, lambda x: F.softplus(x, 3.0, 1e9)),
]
CASES = [(name, {}, function) for name, function in FUNCTIONS.items()] + OPTIONS
GRID = [(0.0, 1.0), (0.3, 0.01), (-1.0, 0.5), (1.0, 3.0), (-30.0, 20.0), (8.0, 3.0), (-5.0, 1.0)]
small = st.floats(-5, 5)
positive = st.floats(0.01, 5)


def integral(function, mean: float, std: float, density=None) -> tuple[float, float]:
    """Mean and variance by SciPy's adaptive quadrature, piece by piece, from f(mean)."""
    corners = [(x - mean) / std for x in (-8, -3, -1, -0.5, 0, 1, 3, 4, 6, 8)]
    ends = sorted({-9.0, -3.0, 0.0, 3.0, 9.0, *(z for z in corners if -9 < z < 9)})
    density = density or gaussian
    centre = function(torch.tensor(mean, dtype=torch.float64)).item()

    def integrand(z: float):
        gap = function(torch.tensor(mean + std * z, dtype=torch.float64)).item() - centre
        return np.array([gap, gap**2]) * density(z)

    panels = [integrate.quad_vec(integrand, a, b, epsabs=1e-11)[0] for a, b in itertools.pairwise(ends)]
    first, second = sum(panels)
    return centre + first, second - first**2


def gaussian(z: float) -> float:
    return math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


# --- one channel


def test_every_activation_of_the_table_is_tested():
    assert set(FUNCTIONS) == set(SHAPES)


@pytest.mark.parametrize(("name", "options", "function"), CASES)
def test_the_table_holds_pytorchs_functions(name, options, function):
    x = torch.linspace(-12, 12, 481, dtype=torch.float64)
    torch.testing.assert_close(SHAPES[name](**options).function(x), function(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "options", "function"), CASES)
def test_moments_are_the_integrals(name, options, function):
    means, stds = zip(*GRID, strict=True)
    found = moments(name, list(means), list(stds), **options)
    for at, (mean, std) in enumerate(GRID):
        want = integral(function, mean, std)
        assert found.mean[at].item() == pytest.approx(want[0], rel=1e-9, abs=1e-9 * std), (mean, std)
        assert found.var[at].item() == pytest.approx(want[1], rel=1e-7, abs=1e-9 * std**2), (mean, std)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_are_what_sampling_shows(name):
    mean, std = torch.tensor([-1.0, 0.2, 2.0]), torch.tensor([0.5, 1.5, 3.0])
    samples = FUNCTIONS[name](mean + std * torch.randn(100_000, 3)).double()
    found = moments(name, mean, std)
    gap = samples - samples.mean(dim=0)
    error_of_mean = samples.std(dim=0) / math.sqrt(100_000)
    error_of_var = gap.square().std(dim=0) / math.sqrt(100_000)
    assert ((samples.mean(dim=0) - found.mean).abs() < 5 * error_of_mean).all()
    assert ((gap.square().mean(dim=0) - found.var).abs() < 5 * error_of_var).all()


@pytest.mark.parametrize(("name", "options", "function"), CASES)
def test_without_spread_the_activation_itself_is_left(name, options, function):
    mean = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 50.0], dtype=torch.float64)
    found = moments(name, mean, torch.zeros(7), **options)
    torch.testing.assert_close(found.mean, function(mean), rtol=1e-14, atol=1e-14)
    assert (found.var == 0).all()
    if name in ("relu", "relu6", "identity"):
        assert torch.equal(found.mean, function(mean))


@given(small, positive)
def test_relu_is_its_textbook_formula(mean, std):
    a = mean / std
    want = mean * stats.norm.cdf(a) + std * stats.norm.pdf(a)
    square = (mean**2 + std**2) * stats.norm.cdf(a) + mean * std * stats.norm.pdf(a)
    found = moments("relu", mean, std)
    assert found.mean.item() == pytest.approx(want, abs=1e-12)
    assert found.var.item() == pytest.approx(square - want**2, abs=1e-11)


@given(small, positive)
def test_relu_of_both_sides_adds_up_to_the_channel(mean, std):
    difference = moments("relu", mean, std).mean - moments("relu", -mean, std).mean
    assert difference.item() == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(mean=small, std=st.floats(0, 5))
@settings(max_examples=30)
def test_variance_is_never_negative_and_the_sign_of_std_does_not_count(name, mean, std):
    found = moments(name, mean, std)
    assert found.var >= 0
    assert found == moments(name, mean, -std)


@pytest.mark.parametrize("name", ["relu", "identity", "relu6", "silu", "hardswish"])
def test_a_narrow_channel_far_from_zero_loses_no_digits(name):
    offset = 5.0 if name == "relu6" else 1e6
    std = 1e-3 if name == "relu6" else 1.0
    assert moments(name, offset, std).var.item() == pytest.approx(std**2, rel=1e-8)


@pytest.mark.parametrize("name", ["relu", "silu"])
def test_channels_do_not_see_each_other(name):
    mean, std = torch.randn(3, 4), torch.rand(3, 4)
    together = moments(name, mean, std)
    assert together.mean.shape == together.var.shape == (3, 4)
    assert together.mean.dtype == torch.float64
    alone = moments(name, mean[1, 2], std[1, 2])
    torch.testing.assert_close(together.mean[1, 2], alone.mean)
    torch.testing.assert_close(together.var[1, 2], alone.var)


@pytest.mark.parametrize(
    "name", ["ReLU", "relu_", "aten::relu", "aten::relu_", "aten.relu.default", "aten.relu_.default"]
)
def test_names_are_known_in_every_spelling(name):
    assert supported(name)
    assert moments(name, 0.0, 1.0) == moments("relu", 0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "mean", "std", "options", "words"),
    [
        ("softmax", 0.0, 1.0, {}, "must be one of identity, relu, .*got 'softmax'"),
        ("relu", [0.0], [1.0, 2.0], {}, r"same shape, got \(1,\) and \(2,\)"),
        ("relu", math.nan, 1.0, {}, "finite"),
        ("relu", 0.0, math.inf, {}, "finite"),
        ("relu", 0.0, 1.0, {"slope": 1.0}, "options of relu must be those of PyTorch"),
        ("hardtanh", 0.0, 1.0, {"min_val": 2.0}, "min_val must be below max_val, got 2.0 and 1.0"),
    ],
)
def test_bad_input_is_refused(name, mean, std, options, words):
    with pytest.raises(InvalidInput, match=words):
        moments(name, mean, std, **options)


# --- the largest of k


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_largest_of_one_is_that_one(name):
    mean, std = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.5, 1.0, 0.0])
    for one, same in zip(max_moments(name, mean, std, k=1), moments(name, mean, std), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "relu6", "sigmoid", "identity"])
@pytest.mark.parametrize("k", [4, 9])
def test_the_largest_of_k_is_the_integral(name, k):
    found = max_moments(name, -0.5, 2.0, k)
    want = integral(FUNCTIONS[name], -0.5, 2.0, lambda z: k * gaussian(z) * special.ndtr(z) ** (k - 1))
    assert found.mean.item() == pytest.approx(want[0], rel=1e-9)
    assert found.var.item() == pytest.approx(want[1], rel=1e-8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_largest_of_k_is_what_pooling_shows(name):
    mean, std = torch.tensor([-2.0, 0.5]), torch.tensor([1.0, 2.0])
    pooled = FUNCTIONS[name](mean + std * torch.randn(100_000, 4, 2)).amax(dim=1).double()
    found = max_moments(name, mean, std, k=4)
    torch.testing.assert_close(pooled.mean(dim=0), found.mean, rtol=0.01, atol=0.005)
    torch.testing.assert_close(pooled.var(dim=0), found.var, rtol=0.04, atol=2e-4)


def test_a_number_of_places_below_one_is_refused():
    with pytest.raises(InvalidInput, match="at least 1, got 0"):
        max_moments("relu", 0.0, 1.0, k=0)


# --- two channels


def pair(correlation: float) -> Tensor:
    return torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64)


def conditional_product(name: str, mean, std, correlation: float) -> float:
    """E[f(x) f(y)] by integrating f(x) E[f(y) | x] over x, in fine panels."""
    left = math.sqrt(1 - correlation**2)
    corners = [(x - mean[0]) / std[0] for x in (-3, -1, 0, 1, 3, 6)]
    bends = [(x - mean[1]) / std[1] / (correlation or 1) for x in (-3, -1, 0, 1, 3, 6)]
    rounded = [z + width * left for z in bends for width in (-8, -4, -2, -1, 0, 1, 2, 4, 8)]
    ends = np.unique(np.clip([*np.linspace(-9, 9, 37), *corners, *rounded], -9, 9))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(ends)[:, None] / 2
    z = (ends[:-1, None] + half * (nodes + 1)).ravel()
    inner = moments(name, mean[1] + std[1] * correlation * z, np.full_like(z, std[1] * left))
    outer = FUNCTIONS[name](torch.from_numpy(mean[0] + std[0] * z))
    return float(torch.from_numpy((half * weights).ravel() * stats.norm.pdf(z)) @ (outer * inner.mean))


@given(st.floats(-1, 1), positive, positive)
def test_relu_without_means_is_the_arc_cosine_kernel(rho, a, b):
    want = a * b / (2 * math.pi) * (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho)))
    assert relu_product([0.0, 0.0], [a, b], pair(rho))[0, 1].item() == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("rho", [-1.0, -0.999, -0.5, 0.0, 0.3, 0.9, 0.999999, 1.0])
@pytest.mark.parametrize(
    "mean", [(0.0, 0.0), (0.0, 1.0), (0.0, -1.0), (0.5, -0.7), (-2.0, 1.5), (1.0, 1.0), (-3.0, -3.0)]
)
def test_relu_with_means_is_the_integral(mean, rho):
    std = (1.0, 2.0)
    want = conditional_product("relu", mean, std, rho)
    assert relu_product(mean, std, pair(rho))[0, 1].item() == pytest.approx(want, abs=1e-8)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("rho", "digits"), [(-0.9, 1e-4), (0.5, 1e-9), (0.8, 1e-6), (0.99, 1e-3), (1.0, 1e-3)]
)
def test_covariance_is_the_integral(name, rho, digits):
    mean, std = (0.4, -0.8), (1.0, 0.7)
    expected = moments(name, mean, std).mean
    want = conditional_product(name, mean, std, rho) - (expected[0] * expected[1]).item()
    found = covariance(name, mean, std, pair(rho))[0, 1].item()
    assert found == pytest.approx(want, abs=digits * std[0] * std[1])


def test_covariance_is_what_sampling_shows():
    factor = torch.randn(5, 5, dtype=torch.float64)
    sigma = factor @ factor.T
    std = sigma.diagonal().sqrt()
    mean = torch.randn(5, dtype=torch.float64)
    samples = F.relu(mean + torch.randn(300_000, 5, dtype=torch.float64) @ factor.T)
    found = covariance("relu", mean, std, sigma / (std[:, None] * std))
    torch.testing.assert_close(samples.T.cov(), found, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_covariance_has_the_variances_on_its_diagonal_and_is_positive(name):
    mean, std = torch.randn(12), torch.rand(12)
    correlation = torch.corrcoef(torch.randn(12, 8, dtype=torch.float64))  # of rank 7
    found = covariance(name, mean, std, correlation)
    torch.testing.assert_close(found.diagonal(), moments(name, mean, std).var, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, found.T, rtol=0, atol=1e-14)
    assert torch.linalg.eigvalsh(found).min() > -1e-9


@pytest.mark.parametrize("name", FUNCTIONS)
def test_independent_or_still_channels_have_no_covariance(name):
    independent = covariance(name, [0.3, -0.4, 2.0], [1.0, 0.5, 2.0], torch.eye(3))
    assert (independent - independent.diag().diag()).abs().max() < 1e-12
    still = covariance(name, [0.3, -0.4], [1.0, 0.0], pair(0.7))
    assert still[0, 1] == still[1, 1] == 0


def test_still_channels_multiply():
    product = relu_product([2.0, -1.0, 0.0], [0.0, 0.0, 1.0], torch.ones(3, 3))
    assert product[0, :2].tolist() == [4.0, 0.0]
    assert product[0, 2].item() == pytest.approx(2 / math.sqrt(2 * math.pi))


def test_covariance_leaves_its_input_alone():
    correlation = torch.full((2, 2), 1 + 1e-8, dtype=torch.float64)
    before = correlation.clone()
    covariance("relu", [0.0, 0.0], [1.0, 1.0], correlation)
    assert torch.equal(correlation, before)


@pytest.mark.parametrize(
    ("mean", "correlation", "words"),
    [
        ([0.0, 1.0], torch.eye(3), r"got \(2,\) and \(3, 3\)"),
        ([[0.0]], torch.eye(1), r"got \(1, 1\) and \(1, 1\)"),
        ([0.0, 1.0], 2 * torch.eye(2), r"must lie in \[-1, 1\].*divide by both std"),
        ([0.0, 1.0], torch.full((2, 2), math.nan), "or NaN"),
    ],
)
@pytest.mark.parametrize("name", ["relu", "silu"])
def test_bad_correlations_are_refused(name, mean, correlation, words):
    with pytest.raises(InvalidInput, match=words):
        covariance(name, mean, torch.ones_like(torch.tensor(mean)), correlation)


@pytest.mark.parametrize("kind", [torch.int64, torch.float16, torch.float32])
def test_covariance_of_correlations_in_any_precision(kind: torch.dtype) -> None:
    correlation = torch.tensor([[1, 0, -1], [0, 1, 0], [-1, 0, 1]])
    mean, std = [0.5, 1.0, -0.5], [1.0, 0.5, 2.0]
    wanted = covariance("relu6", mean, std, correlation.double())
    torch.testing.assert_close(
        covariance("relu6", mean, std, correlation.to(kind)), wanted, rtol=1e-5, atol=1e-6
    )
