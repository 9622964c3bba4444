"""Training phases: what they do to weights, step by step, and through a real training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import slimilar
from _digits import digits, network
from slimilar.criteria import Slimming, available, facts, training_hooks
from slimilar.errors import InvalidInput
from slimilar.models import ResNet
from slimilar.train import Recipe, train

X = torch.zeros(1, 1, 8, 8)
SHORT = Recipe(epochs=2, batch_size=64, lr=0.02)


def filter_norms(conv: nn.Module) -> np.ndarray:
    return conv.weight.detach().flatten(1).norm(dim=1).numpy()  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("name", [n for n in available() if facts(n).needs != "training"])
def test_without_a_training_phase_there_are_no_hooks(name: str) -> None:
    with pytest.raises(InvalidInput, match="no training phase"):
        training_hooks(name, network(), X)


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
    data = digits(0, 512)
    plain = train(network(), data, SHORT).model
    with pytest.raises(InvalidInput, match="nothing says that this model had it"):
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
    hooks = training_hooks("soft", net, X, ratio=0.25)
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


def test_soft_takes_the_counts_of_the_pruning_to_come() -> None:
    data = digits(0, 256)
    trained = train(network(), data, SHORT, hooks=training_hooks("soft", network(), X, flops=0.5)).model
    result = slimilar.prune(trained, X, flops=0.5, criterion="soft", substitute="none")
    for name, conv in (("0", trained[0]), ("4", trained[4])):
        zero = np.flatnonzero(filter_norms(conv) == 0)  # type: ignore[arg-type]
        assert set(range(len(filter_norms(conv)))) - set(zero) == set(result.kept[name])  # type: ignore[arg-type]
    assert 0.45 < result.cut.flops / result.cut.before.flops <= 0.5
