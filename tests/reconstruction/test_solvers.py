"""The linear algebra behind a fit, against NumPy, brute force and general optimisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.fitting import generator, images, small_net
from slimilar.calibration.consumers import at_places, patches
from slimilar.calibration.fisher import fisher_weights, temperature
from slimilar.calibration.program import record
from slimilar.errors import InvalidInput
from slimilar.reconstruction.solvers import (
    SampleMoments,
    backward_elimination,
    block_elimination,
    least_squares,
    mixing,
    ridge,
)
from slimilar.reconstruction.targets import ReconstructionTarget
from slimilar.utils.modules import named_tensors


def test_least_squares_is_numpys() -> None:
    x = torch.randn(200, 6, dtype=torch.float64, generator=generator())
    y = torch.randn(200, 3, dtype=torch.float64, generator=generator(1))
    moments = SampleMoments(6, beside=3)
    for seen, wanted in zip(x.split(30), y.split(30), strict=True):
        moments.add(seen, wanted)
    zeros = torch.zeros(6, 3, dtype=torch.float64)
    fitted = least_squares(moments.covariance(), moments.cross(), zeros, 0.0)
    shift = moments.mean_beside() - moments.mean() @ fitted
    wanted = np.linalg.lstsq(np.c_[x.numpy(), np.ones(200)], y.numpy(), rcond=None)[0]
    assert np.allclose(np.r_[fitted.numpy(), shift.numpy()[None]], wanted, atol=1e-10)


def test_moments_of_many_columns_are_numpys() -> None:
    """More columns than are multiplied at once, and rows in uneven pieces."""
    x = torch.randn(700, 1100, dtype=torch.float64, generator=generator()) + 3
    y = torch.randn(700, 2, dtype=torch.float64, generator=generator(1))
    moments = SampleMoments(1100, beside=2)
    for seen, wanted in zip(x.split(90), y.split(90), strict=True):
        moments.add(seen, wanted)
    everything = np.cov(torch.cat([x, y], 1).numpy().T, bias=True)
    assert np.allclose(moments.covariance(), everything[:1100, :1100], atol=1e-10)
    assert np.allclose(moments.cross(), everything[:1100, 1100:], atol=1e-10)
    assert np.allclose(moments.mean(), x.numpy().mean(0), atol=1e-12)


def test_a_strong_ridge_stays_at_the_prior() -> None:
    x = torch.randn(50, 4, dtype=torch.float64, generator=generator())
    covariance, prior = torch.cov(x.T), torch.randn(4, 2, dtype=torch.float64, generator=generator(3))
    cross = covariance @ torch.ones(4, 2, dtype=torch.float64)
    assert torch.allclose(least_squares(covariance, cross, prior, 1e9), prior, atol=1e-6)
    free = least_squares(covariance, cross, prior, 0.0)
    assert torch.allclose(free, torch.ones(4, 2, dtype=torch.float64), atol=1e-8)


def test_mixing_is_numpys_regression() -> None:
    x = torch.randn(300, 5, dtype=torch.float64, generator=generator()) @ torch.randn(
        5, 5, dtype=torch.float64, generator=generator(1)
    )
    kept, removed = torch.tensor([0, 2, 3]), torch.tensor([1, 4])
    matrix = mixing(torch.cov(x.T), kept, removed, strength=0.0)
    centred = (x - x.mean(0)).numpy()
    wanted = np.linalg.lstsq(centred[:, kept], centred[:, removed], rcond=None)[0].T
    assert np.allclose(matrix.numpy(), wanted, atol=1e-10)


def test_backward_elimination_adds_up_the_error_of_regression() -> None:
    """After each step, the summed error is that of regressing all removed channels on those left."""
    x = torch.randn(400, 6, dtype=torch.float64, generator=generator()) @ torch.randn(
        6, 6, dtype=torch.float64, generator=generator(1)
    )
    weight = torch.randn(6, 7, dtype=torch.float64, generator=generator(2))
    covariance = ridge(torch.cov(x.T, correction=0), 1e-4)
    found = backward_elimination([covariance], [weight @ weight.T], [np.arange(6)], 6, np.arange(6))
    assert sorted(found.removed.tolist()) == list(range(6))
    twice = ridge(covariance)  # what the elimination works with
    for k in range(1, 5):
        gone = torch.from_numpy(found.removed[:k])
        left = torch.from_numpy(found.removed[k:].copy())
        m = mixing(twice, left, gone, 0.0)
        residual = twice[gone][:, gone] - m @ twice[left][:, gone]
        assert found.error[k - 1] == pytest.approx(
            float(torch.trace(weight[gone].T @ residual @ weight[gone])), rel=1e-6
        )


def test_first_to_leave_is_the_one_that_costs_least_by_brute_force() -> None:
    x = torch.randn(400, 5, dtype=torch.float64, generator=generator()) @ torch.randn(
        5, 5, dtype=torch.float64, generator=generator(4)
    )
    weight = torch.randn(5, 3, dtype=torch.float64, generator=generator(2))
    covariance = ridge(torch.cov(x.T, correction=0), 1e-4)
    found = backward_elimination([covariance], [weight @ weight.T], [np.arange(5)], 5, np.arange(5))
    costs = []
    for i in range(5):
        others = torch.tensor([j for j in range(5) if j != i])
        m = mixing(covariance, others, torch.tensor([i]), 1e-4)
        costs.append(float((covariance[i, i] - m[0] @ covariance[others, i]) * weight[i].square().sum()))
    assert int(found.removed[0]) == int(np.argmin(costs))


def test_block_elimination_is_least_squares_without_the_block() -> None:
    """After each step the kernel is the fit on what is left, and the cost is what the residual has grown by."""
    x = torch.randn(300, 8, dtype=torch.float64, generator=generator()) @ torch.randn(
        8, 8, dtype=torch.float64, generator=generator(1)
    )
    y = torch.randn(300, 3, dtype=torch.float64, generator=generator(2)) + x[:, :3]
    heard = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def residual(left: Tensor) -> tuple[Tensor, float]:
        inputs = x[:, (left[:, None] * 2 + torch.arange(2)).flatten()]
        kernel = torch.linalg.lstsq(inputs, y).solution
        return kernel, float(((y - inputs @ kernel).square() * heard).sum())

    found = block_elimination(x.T @ x, x.T @ y, 2, heard, 1, torch.zeros(4, dtype=torch.bool), (4, 3, 2, 1))
    costs, before = [], residual(torch.arange(4))[1]
    for count in (3, 2, 1):
        left, kernel = found.fits[count]
        wanted, error = residual(left)
        assert torch.allclose(kernel.double(), wanted, atol=1e-5)
        costs.append(error - before)
        before = error
    assert np.allclose(found.cost, costs, rtol=1e-8)
    others = [residual(torch.tensor([j for j in range(4) if j != i]))[1] for i in range(4)]
    assert int(found.removed[0]) == int(np.argmin(others))
    kept = block_elimination(x.T @ x, x.T @ y, 2, heard, 1, torch.tensor([False, True, False, False]))
    assert kept.left.tolist() == [1]


def test_answers_are_softened_until_a_fair_share_of_the_pictures_has_a_say() -> None:
    doubted = 3 * torch.randn(200, 10, generator=generator())
    assert temperature(doubted) == 1
    by_heart = 2 * torch.randn(200, 10, generator=generator())
    by_heart[:, 0] += 15.0
    assert temperature(by_heart) == 4
    assert temperature(100 * by_heart) == 8


def test_hearing_is_the_squared_gradient_of_a_drawn_label() -> None:
    net, x = small_net(), images(16)
    program = record(net, x)
    ops = [
        k for k, instruction in enumerate(program.instructions) if "convolution" in instruction.func.name()
    ]
    heard = fisher_weights(program, ops, named_tensors(net), x, seed=3)
    seen: list[Tensor] = []
    convs = [m for m in net if isinstance(m, nn.Conv2d)]
    hooks = [c.register_forward_hook(lambda _, __, out: seen.append(out.requires_grad_())) for c in convs]
    scores = net(x)
    scores = scores / temperature(scores.detach())
    label = torch.multinomial(scores.detach().softmax(1), 1, generator=generator(3))
    wanted = torch.autograd.grad(scores.log_softmax(1).gather(1, label).sum(), seen)
    for hook in hooks:
        hook.remove()
    for op, gradient in zip(ops, wanted, strict=True):
        assert torch.allclose(heard[op], gradient.square().sum((0, 2, 3)).double(), rtol=1e-3)


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(1, 1, 0, 1), (1, 2, 0, 1), (3, 1, 1, 1), (3, 2, 2, 2)]
)
def test_patches_are_those_of_unfold(
    laid: torch.memory_format, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    conv = nn.Conv2d(5, 2, kernel, stride, padding, dilation, bias=False)
    x = torch.randn(3, 5, 9, 11, generator=generator()).to(memory_format=laid)
    instruction = next(p for p in record(conv, x).instructions if "convolution" in p.func.name())
    wanted = nn.functional.unfold(x, kernel, dilation, padding, stride)  # (images, channels * taps, places)
    places, channels = torch.tensor([4, 0, 7]), torch.tensor([3, 1])
    expected = wanted[:, :, places].transpose(1, 2).reshape(9, 5, kernel * kernel)
    assert torch.equal(patches(x, instruction, (kernel, kernel), places), expected.flatten(1))
    assert torch.equal(
        patches(x, instruction, (kernel, kernel), places, channels), expected[:, channels].flatten(1)
    )


def test_the_aim_of_a_residual_branch_makes_the_sum_the_originals() -> None:
    """At the places that are picked: conv + what the stream has lost, in units of the batch norm behind the conv."""
    plain, theirs, mine = (torch.randn(2, 3, 4, 4, generator=generator(i)) for i in range(3))
    scale, level = torch.tensor([0.5, -2.0, 1.0]), torch.tensor([0.1, 0.2, 0.3])
    wanted, opens = ReconstructionTarget(plain, (theirs, mine), scale, level, scale).at(
        lambda t: at_places(t, torch.tensor([5]))
    )
    assert opens is not None
    at = lambda t: t[:, :, 1, 1]  # noqa: E731
    torch.testing.assert_close(wanted * scale + at(mine), at(plain) * scale + at(theirs))
    torch.testing.assert_close((opens - level) * scale, -at(mine))  # there the sum is zero


def test_elimination_in_place_is_elimination_anew() -> None:
    """Dropping channels from the inverse in place, against inverting what is left after every step."""
    n, taps = 40, 3
    x = torch.randn(500, n * taps, generator=generator(3), dtype=torch.float64)
    x = x @ torch.randn(n * taps, n * taps, generator=generator(4), dtype=torch.float64)
    covariance = x.T @ x / len(x)
    cross = covariance @ torch.randn(n * taps, 6, generator=generator(5), dtype=torch.float64)
    fixed = torch.arange(n) % 7 == 0
    kept = covariance.clone(), cross.clone()
    found = block_elimination(covariance, cross, taps, torch.ones(6), 9, fixed, stops=(30, 9))
    assert torch.equal(covariance, kept[0])
    assert torch.equal(cross, kept[1])
    assert sorted([*found.left.tolist(), *found.removed.tolist()]) == list(range(n))
    assert fixed.nonzero()[:, 0].tolist() == [i for i in found.left.tolist() if i % 7 == 0]
    for count, (channels, kernel) in found.fits.items():
        assert len(channels) == count
        assert channels.tolist() == sorted(set(range(n)) - set(found.removed[: n - count].tolist()))
        unknowns = (channels[:, None] * taps + torch.arange(taps)).flatten()
        anew = torch.linalg.solve(covariance[unknowns][:, unknowns], cross[unknowns])
        assert torch.allclose(kernel.double(), anew, atol=1e-4)


def test_activations_that_are_not_finite_are_refused() -> None:
    covariance = torch.eye(3, dtype=torch.float64)
    covariance[0, 0] = torch.nan
    with pytest.raises(InvalidInput, match="must be finite"):
        mixing(covariance, torch.tensor([0, 1]), torch.tensor([2]))


def test_a_channel_that_does_not_vary_stands_in_for_nothing() -> None:
    """Rounding leaves its variance a little below zero."""
    covariance = torch.diag(torch.tensor([-1e-17, 1.0, 1.0], dtype=torch.float64))
    assert bool(
        torch.isfinite(mixing(covariance, torch.tensor([0, 1]), torch.tensor([2]), strength=0.0)).all()
    )


def test_channels_that_vary_by_rounding_alone_stand_in_for_little() -> None:
    """As behind attention to which all images are alike: a quotient of rounding errors is not a weight."""
    covariance = torch.diag(torch.tensor([0.0, 0.0, 1e-16], dtype=torch.float64))
    covariance[0, 2] = covariance[2, 0] = 4e-31
    assert float(mixing(covariance, torch.tensor([0, 1]), torch.tensor([2]), strength=1.0).abs().max()) < 100
