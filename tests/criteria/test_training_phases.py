"""Training phases: what they do to weights, step by step, and through a real training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import slimilar
from helpers.digits import digits, network
from slimilar.criteria import Slimming, StructuredSparsity, available, facts, training_hooks
from slimilar.errors import InvalidInput
from slimilar.models import ResNet
from slimilar.train import Hooks, Recipe, train

X = torch.zeros(1, 1, 8, 8)
SHORT = Recipe(epochs=1, batch_size=32, lr=0.02)


def filter_norms(conv: nn.Module) -> np.ndarray:
    return conv.weight.detach().flatten(1).norm(dim=1).numpy()  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("name", [n for n in available() if facts(n).needs != "training"])
def test_without_a_training_phase_there_are_no_hooks(name: str) -> None:
    with pytest.raises(InvalidInput, match="no training phase"):
        training_hooks(name, network(), X)


def test_a_run_is_resumed_with_the_phase_that_it_began_with(tmp_path: Path) -> None:
    data, more = digits(0, 64), Recipe(epochs=2, batch_size=32, lr=0.02)
    hooks = training_hooks(Slimming(0.01), network(), X)

    def stop(model: nn.Module, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), data, more, folder=tmp_path, hooks=replace(hooks, on_epoch_end=stop))
    for other in (Hooks(), training_hooks(Slimming(0.02), network(), X)):
        with pytest.raises(InvalidInput, match=r"hooks must be 'slimming, strength 0.01' as in the run"):
            train(network(), data, more, folder=tmp_path, resume=True, hooks=other)
    assert len(train(network(), data, more, folder=tmp_path, resume=True, hooks=hooks).history) == 2


# --- slimming -------------------------------------------------------------------------------------------------------


def test_the_gradient_of_slimming_is_its_strength() -> None:
    net = network()
    with torch.no_grad():
        net[1].weight.copy_(torch.linspace(-2, 2, 8))
        net[1].weight[3] = 0
    hooks = training_hooks(Slimming(strength=0.01), net, X)
    assert hooks.regulariser is not None
    term = hooks.regulariser(net)
    assert float(term.detach()) == pytest.approx(0.01 * (float(net[1].weight.detach().abs().sum()) + 16))
    term.backward()
    assert torch.equal(net[1].weight.grad, 0.01 * net[1].weight.sign())
    assert torch.equal(net[5].weight.grad, torch.full((16,), 0.01))
    assert net[1].bias.grad is None
    assert net[0].weight.grad is None


def test_slimming_spares_scales_that_cannot_leave() -> None:
    net = ResNet(8, 10, 0.25, shortcut="conv")
    hooks = training_hooks("slimming", net, torch.zeros(1, 3, 32, 32))
    hooks.regulariser(net).backward()  # type: ignore[misc]
    assert net.layer1[0].bn1.weight.grad is not None
    assert net.layer1[0].bn2.weight.grad is None  # a residual stream
    joint = training_hooks("slimming", net, torch.zeros(1, 3, 32, 32), residual="joint")
    joint.regulariser(net).backward()  # type: ignore[misc]
    assert net.layer1[0].bn2.weight.grad is not None


def test_slimming_makes_scales_small_and_is_pruned_by_quantile() -> None:
    data = digits(0, 256)
    plain = train(network(), data, SHORT).model
    with pytest.raises(InvalidInput, match="of which this model has no record"):
        slimilar.prune(plain, X, quantile=0.5, criterion="slimming")
    sparse = train(network(), data, SHORT, hooks=training_hooks(Slimming(0.3), network(), X)).model
    total = [sum(float(m[i].weight.detach().abs().sum()) for i in (1, 5)) for m in (plain, sparse)]
    assert total[1] < 0.8 * total[0]
    result = slimilar.prune(sparse, X, quantile=0.5, criterion="slimming")
    assert sum(result.cut.widths.values()) == 12


# --- soft -----------------------------------------------------------------------------------------------------------


def test_soft_must_know_how_far_to_go() -> None:
    with pytest.raises(InvalidInput, match="must know how much will leave"):
        training_hooks("soft", network(), X)


def test_soft_zeroes_the_smallest_filters_and_they_may_return() -> None:
    net = network()
    nn.init.constant_(net[5].bias, 0.5)  # behind a ReLU that is shut, a filter waits for its momentum
    hooks = training_hooks("soft", net, X, ratio=0.25, round_to=1)
    before = filter_norms(net[4])
    hooks.on_epoch_end(net, 1)  # type: ignore[misc]
    gone = np.flatnonzero(filter_norms(net[4]) == 0)
    assert gone.tolist() == sorted(np.argsort(before)[:4].tolist())
    assert (filter_norms(net[0]) == 0).sum() == 2
    assert filter_norms(net[10]).min() > 0  # the scores stay
    batch = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net.train()(batch).square().sum().backward()
    assert (net[4].weight.grad[gone].flatten(1).norm(dim=1) > 0).all()
    with torch.no_grad():
        net[4].weight -= net[4].weight.grad * 1e3  # a step so large that others are now the smallest
    hooks.on_epoch_end(net, 2)  # type: ignore[misc]
    assert set(np.flatnonzero(filter_norms(net[4]) == 0)) != set(gone)


@pytest.mark.parametrize("bias", [False, True])
def test_what_soft_zeroed_says_a_constant_that_the_readers_take_in(bias: bool) -> None:
    net = network()
    if bias:
        net[4] = nn.Conv2d(8, 16, 3, padding=1)
    for i in (1, 5):
        nn.init.normal_(net[i].bias, 0.2, 0.5)
        nn.init.normal_(net[i].running_mean, 0, 1)
    training_hooks("soft", net, X, ratio=0.5).on_epoch_end(net, 1)  # type: ignore[misc]
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    gone = torch.from_numpy(np.flatnonzero(filter_norms(net[4]) == 0))
    with torch.no_grad():
        said = net.eval()[:6](x)[:, gone]
        assert torch.allclose(said, net[5].bias[gone].reshape(1, -1, 1, 1).expand_as(said), atol=1e-6)
        # The second layer is read without padding, at whose border a constant would end.
        result = slimilar.prune(net, X, ratio=0.5, criterion="soft", calibration=x, exclude=["0"])
        assert result.substitute == "linear"
        assert result.cut.widths == {"4": 8}
        assert torch.allclose(result.model(x), net(x), atol=1e-4)


def test_soft_takes_the_counts_of_the_pruning_to_come() -> None:
    data = digits(0, 256)
    trained = train(network(), data, SHORT, hooks=training_hooks("soft", network(), X, flops=0.5)).model
    result = slimilar.prune(trained, X, flops=0.5, criterion="soft", substitute="none")
    for name, conv in (("0", trained[0]), ("4", trained[4])):
        zero = np.flatnonzero(filter_norms(conv) == 0)  # type: ignore[arg-type]
        assert set(range(len(filter_norms(conv)))) - set(zero) == set(result.kept[name])  # type: ignore[arg-type]
    assert 0.35 < result.cut.flops / result.cut.before.flops <= 0.5  # 16 channels stay, 3 of 8 others


# --- structured sparsity --------------------------------------------------------------------------------------------


def penalised(point: np.ndarray, start: np.ndarray, amount: float, axes: tuple[int, ...]) -> float:
    """Return what a proximal step minimises: nearness to the start, and the norms of rows (0) or columns (1)."""
    matrix = point.reshape(start.shape)
    norms = sum(np.linalg.norm(matrix, axis=1 - axis).sum() for axis in axes)
    return float(((matrix - start) ** 2).sum() / 2 + amount * norms)


def pair(first: np.ndarray, second: np.ndarray) -> nn.Sequential:
    """Return two linear layers: what the first writes, the second reads."""
    net = nn.Sequential(nn.Linear(*first.shape[::-1]), nn.ReLU(), nn.Linear(*second.shape[::-1])).double()
    net[0].weight.data, net[2].weight.data = torch.from_numpy(first), torch.from_numpy(second)
    return net


def test_the_proximal_step_is_the_minimiser_and_makes_exact_zeros() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(4, 3)), random.normal(size=(2, 4))
    first[1] *= 0.1
    second[:, 2] *= 0.1
    net = pair(first.copy(), second.copy())
    hooks = training_hooks(StructuredSparsity(strength=2.0), net, torch.zeros(1, 3, dtype=torch.float64))
    hooks.after_step(net, 0.2)  # type: ignore[misc]
    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 2000}
    found = [*net[0].weight.detach().numpy(), *net[2].weight.detach().numpy().T]
    for got, start in zip(found, [*first, *second.T], strict=True):
        best = minimize(penalised, start, (start[None], 0.4, (0,)), method="Nelder-Mead", options=options)
        assert penalised(got, start[None], 0.4, (0,)) <= best.fun + 1e-9
        assert got == pytest.approx(best.x, abs=1e-4)
    assert (net[0].weight[1] == 0).all()
    assert (net[2].weight[:, 2] == 0).all()
    assert int((net[0].weight == 0).sum()) == 3


def test_filters_then_channels_are_the_step_of_their_sum_to_second_order() -> None:
    start = np.array([[1.0, -0.6], [0.4, 0.9]])
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    gaps = []
    for amount in (0.02, 0.01):
        net[2].weight.data = torch.from_numpy(start.copy())
        hooks = training_hooks(StructuredSparsity(strength=1.0), net, torch.zeros(1, 1, dtype=torch.float64))
        hooks.after_step(net, amount)  # type: ignore[misc]
        best = minimize(
            penalised, start.ravel(), (start, amount, (0, 1)), method="BFGS", options={"gtol": 1e-10}
        )
        gaps.append(float(np.linalg.norm(net[2].weight.detach().numpy() - best.x.reshape(2, 2))))
    assert gaps[0] < 0.02**2
    assert gaps[1] < gaps[0] / 3


def test_units_that_training_made_zero_leave_first_and_change_nothing() -> None:
    data, lasso = digits(0, 256), StructuredSparsity(strength=4.0)
    model = train(network(), data, SHORT, hooks=training_hooks(lasso, network(), X)).model
    silent = {
        "0": (filter_norms(model[0]) == 0) | (model[4].weight == 0).all(3).all(2).all(0).numpy(),
        "4": (filter_norms(model[4]) == 0) | (model[10].weight == 0).reshape(10, 16, 4).all(2).all(0).numpy(),
    }
    assert sum(s.sum() for s in silent.values()) > 2
    result = slimilar.prune(model, X, threshold=1e-6, criterion="structured-sparsity", substitute="mean")
    for name, zero in silent.items():
        assert result.kept[name] == tuple(np.flatnonzero(~zero)) or zero.all()
    images = data.tensor()[:64]
    with torch.no_grad():
        assert torch.allclose(result.model(images), model(images), atol=1e-4)
