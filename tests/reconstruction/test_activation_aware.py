"""Steps behind an activation: against a general optimiser, and what they must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.fitting import generator
from slimilar.calibration.program import record
from slimilar.reconstruction.activation_aware import FollowingActivation, function_of
from slimilar.reconstruction.patches import ChannelChoice, Fit, Samples, fit

SMOOTH = {
    "silu": functional.silu,
    "hardswish": functional.hardswish,
    "gelu": functional.gelu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
}


def fitted(x: Tensor, y: Tensor, level: Tensor, behind: FollowingActivation, steps: int) -> Fit:
    samples = Samples(len(x))
    samples.add(x, y.clone(), level.clone())
    size, outputs = x.shape[1], y.shape[1]
    nothing = torch.zeros(size, dtype=torch.bool)
    choice = ChannelChoice(1, torch.ones(outputs), size, nothing, torch.arange(size))
    return fit(samples, torch.zeros(size, outputs, dtype=torch.float64), choice, behind, steps, 1e-9)


def test_behind_a_relu_the_fit_follows_what_passes_it() -> None:
    """Against minimising the same convex loss by a general optimiser; and after the ReLU it beats least squares."""
    x = torch.randn(2000, 4, generator=generator())
    y = (
        x @ torch.randn(4, 2, generator=generator(1))
        + torch.randn(2000, 2, generator=generator(2)).abs() * 3
        - 3
    )
    level, sign = torch.full_like(y, 0.3), torch.tensor([1.0, -1.0])

    def samples() -> Samples:
        found = Samples(3000)
        found.add(x[:500], y[:500], level[:500])
        found.add(x[500:], y[500:], level[500:])
        return found

    prior, none = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.bool)
    choice = ChannelChoice(1, torch.ones(2), 4, none, torch.arange(4))
    plain, gated = (
        fit(samples(), prior, choice, FollowingActivation(sign), steps, 1e-9) for steps in (0, 200)
    )

    def loss(kernel: Tensor, constant: Tensor) -> Tensor:
        given, at = x.double() @ kernel + constant, level.double()
        open_ = (y - level) * sign > 0
        rest = torch.where((given - at) * sign > 0, given - at, 0.0)
        return torch.where(open_, y.double() - given, rest).square().mean()

    kernel, constant = prior.clone().requires_grad_(), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([kernel, constant], max_iter=200, tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(kernel, constant)
        value.backward()
        return value

    optimizer.step(closure)
    best = float(loss(kernel, constant).detach())
    assert float(loss(gated.kernel, gated.constant)) == pytest.approx(best, rel=1e-4)
    assert float(loss(plain.kernel, plain.constant)) > 1.2 * best


@pytest.mark.parametrize("name", SMOOTH)
def test_behind_a_smooth_activation_less_is_lost_than_by_least_squares(name: str) -> None:
    """The original's outputs are a bent function of what is read; errors far below zero do not show."""
    x = torch.randn(4000, 6, generator=generator())
    y = 2 * x @ torch.randn(6, 3, generator=generator(1)) + (x[:, :3] * x[:, 3:]) * 2 - 1
    level, scale = torch.full_like(y, 0.4), torch.tensor([1.5, -0.7, 1.0])
    behind = FollowingActivation(scale, SMOOTH[name])

    def lost(found: Fit) -> float:
        given = (x.double() @ found.kernel + found.constant).float()
        gap = SMOOTH[name]((given - level) * scale) - SMOOTH[name]((y - level) * scale)
        return float(gap.square().mean())

    plain, three, many = (fitted(x, y, level, behind, steps) for steps in (0, 3, 30))
    assert lost(three) < 0.97 * lost(plain)
    assert lost(many) <= lost(three) * 1.001


@pytest.mark.parametrize("name", [None, *SMOOTH])
def test_steps_leave_a_kernel_alone_that_misses_nothing(name: str | None) -> None:
    x = torch.randn(500, 4, generator=generator())
    wanted = torch.randn(4, 3, generator=generator(1))
    behind = FollowingActivation(torch.tensor([1.0, -2.0, 0.5]), SMOOTH[name] if name else None)
    found = fitted(x, x @ wanted + 0.5, torch.zeros(500, 3), behind, 5)
    torch.testing.assert_close(found.kernel.float(), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.constant.float(), torch.full((3,), 0.5), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("module", "known", "rectifies"),
    [
        (nn.ReLU(), True, True),
        (nn.ReLU6(inplace=True), True, True),
        (nn.Hardtanh(), False, False),
        (nn.SiLU(inplace=True), True, False),
        (nn.Hardswish(), True, False),
        (nn.GELU(approximate="tanh"), True, False),
        (nn.LeakyReLU(0.2), True, False),
        (nn.Sigmoid(), False, False),
    ],
)
def test_activations_are_known_by_their_operators(module: nn.Module, known: bool, rectifies: bool) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), module, nn.Conv2d(2, 1, 1))
    instruction = record(net, torch.zeros(1, 1, 2, 2)).instructions[1]
    found, function = function_of(instruction)
    assert found == known
    assert (found and function is None) == rectifies
    if function is not None:
        x = torch.randn(5, generator=generator())
        torch.testing.assert_close(function(x.clone()), module(x.clone()))
