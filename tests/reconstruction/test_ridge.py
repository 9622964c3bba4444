"""The strength of the ridge: closed forms against brute force, and what held-out images say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slimilar.reconstruction.ridge import (
    Statistics,
    held_out_error,
    held_out_strength,
    leave_one_out,
    leave_one_out_strength,
    pooled,
    weakest_strength,
)
from slimilar.reconstruction.solvers import SampleMoments


def draw(count: int, *shape: int, seed: int) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def fitted(x: Tensor, y: Tensor, prior: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return kernel and constant by stacking the penalty below the samples, as a textbook would."""
    mean, target = x.mean(0), y.mean(0)
    rows = torch.cat([x - mean, penalty**0.5 * torch.eye(x.shape[1], dtype=torch.float64)])
    wanted = torch.cat([y - target, penalty**0.5 * prior])
    kernel = torch.linalg.lstsq(rows, wanted, driver="gelsd").solution
    return kernel, target - mean @ kernel


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "unknowns"), [(12, 3), (12, 12), (8, 30)])
@pytest.mark.parametrize("strength", [1e-3, 0.1, 10.0])
def test_leave_one_out_is_brute_force(seed: int, count: int, unknowns: int, strength: float) -> None:
    x, y = draw(count, unknowns, seed=seed) + 2, draw(count, 2, seed=seed + 100) - 1
    prior = draw(unknowns, 2, seed=seed + 200)
    found = leave_one_out(x, y, prior, strength)
    for i in range(count):
        others = torch.arange(count) != i
        kernel, constant = fitted(x[others], y[others], prior, count * strength)
        torch.testing.assert_close(found[i], y[i] - x[i] @ kernel - constant, rtol=1e-6, atol=1e-8)


def statistics(x: Tensor, y: Tensor) -> Statistics:
    moments = SampleMoments(x.shape[1], y.shape[1])
    moments.add(x, y)
    return Statistics.of(moments)


def test_pooled_statistics_are_those_of_all_samples() -> None:
    x, y = draw(50, 4, seed=0) + 3, draw(50, 2, seed=1)
    found, wanted = pooled(statistics(x[:20], y[:20]), statistics(x[20:], y[20:])), statistics(x, y)
    assert found.count == wanted.count
    for part in ("mean", "target", "covariance", "cross"):
        torch.testing.assert_close(getattr(found, part), getattr(wanted, part))


def test_few_samples_trust_the_prior_and_many_do_not() -> None:
    """With the true kernel as the prior and noisy targets, few samples ask for a strong ridge; else for a weak one."""
    truth, wrong = draw(40, 1, seed=0), torch.zeros(40, 1, dtype=torch.float64)
    ones = torch.ones(1, dtype=torch.float64)

    def parts(count: int, noise: float) -> tuple[Statistics, Statistics]:
        x = draw(count, 40, seed=1)
        y = x @ truth + noise * draw(count, 1, seed=2)
        return statistics(x[: count // 2], y[: count // 2]), statistics(x[count // 2 :], y[count // 2 :])

    careful, _ = held_out_strength(*parts(48, noise=3.0), truth, ones)
    trusting, _ = held_out_strength(*parts(4000, noise=0.01), wrong, ones)
    assert careful >= 1
    assert trusting <= 1e-3


def test_of_ridges_that_err_alike_the_weakest_is_taken() -> None:
    """Targets with little noise: all weak ridges fit them alike. With few noisy samples none is as good as the best."""
    ones, zero = torch.ones(1, dtype=torch.float64), torch.zeros(40, 1, dtype=torch.float64)
    for count, noise in ((4000, 1.0), (60, 4.0)):
        x = draw(count, 40, seed=1)
        y = x @ draw(40, 1, seed=0) + noise * draw(count, 1, seed=2)
        half = count // 2
        parts = statistics(x[:half], y[:half]), statistics(x[half:], y[half:])
        best, error = held_out_strength(*parts, zero, ones)
        weakest, same = weakest_strength(*parts, zero, ones)
        nothing, allowed = 0.0, error + 0.01 * (0.0 - error)  # the kernel before is zero, and errs by nothing
        assert same == error
        assert weakest <= best
        assert held_out_error(*parts, zero, ones, weakest) <= allowed < nothing
        weaker = weakest / 10
        assert weaker < 1e-4 or held_out_error(*parts, zero, ones, weaker) > allowed
    assert best > 1e-4


def test_leave_one_out_prefers_the_prior_it_should() -> None:
    x, truth = draw(30, 60, seed=0), draw(60, 2, seed=1)
    y = x @ truth + 5 * draw(30, 2, seed=2)
    weight = torch.ones(2, dtype=torch.float64)
    assert leave_one_out_strength(x, y, truth, weight) > leave_one_out_strength(
        x, x @ truth, 0 * truth, weight
    )
