"""Weights that are computed from others: weight_norm and spectral_norm are pruned exactly, the rest is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import slimilar
from slimilar.surgery.rewrite import operate

X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def net(wrap: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [wrap(nn.Conv2d(3, 8, 3)), nn.ReLU(), wrap(nn.Conv2d(8, 6, 3)), nn.ReLU(), nn.Conv2d(6, 2, 1)]
    return nn.Sequential(*layers).eval()


WEIGHT_NORMS = {
    "parametrisation": parametrizations.weight_norm,
    "hook": nn.utils.weight_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("wrap", WEIGHT_NORMS.values(), ids=WEIGHT_NORMS)
def test_weight_norm_loses_inputs_and_outputs_exactly(wrap: Any) -> None:
    model = net(wrap)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    result = slimilar.prune(model, X, ratio=0.5, criterion="magnitude-l2", substitute="none")
    small = result.model
    assert [small[i].out_channels for i in (0, 2)] == [4, 3]
    assert result.error is not None
    assert result.error < 1e-5
    small(X).sum().backward()  # it can be trained on
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("wrap", WEIGHT_NORMS.values(), ids=WEIGHT_NORMS)
def test_a_weight_norm_keeps_the_kernels_that_are_left(wrap: Any) -> None:
    """By hand: the consumer's kernels for the inputs that stay are those of the original."""
    model = net(wrap)
    small = slimilar.remove_channels(model, X, {"0": [1, 4, 5]})
    model(X), small(X)  # the older kind computes its weight when it runs
    torch.testing.assert_close(small[2].weight, model[2].weight[:, [0, 2, 3, 6, 7]])


SPECTRAL_NORMS = {"parametrisation": parametrizations.spectral_norm, "hook": nn.utils.spectral_norm}


@pytest.mark.filterwarnings("ignore:.*spectral_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("wrap", SPECTRAL_NORMS.values(), ids=SPECTRAL_NORMS)
def test_spectral_norm_loses_inputs_and_outputs_exactly(wrap: Any) -> None:
    """By hand: what is left of every kernel is what it was, divided by the sigma of the whole."""
    model = net(wrap)
    model.train()(X)  # the vectors are no longer those of the start
    model.eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    small = slimilar.remove_channels(model, X, {"0": [1, 4, 5], "2": [0, 3]})
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    model(X), small(X)  # the older kind computes its weight when it runs
    torch.testing.assert_close(small[0].weight, model[0].weight[[0, 2, 3, 6, 7]])
    torch.testing.assert_close(small[2].weight, model[2].weight[[1, 2, 4, 5]][:, [0, 2, 3, 6, 7]])
    small.train()(X).sum().backward()  # it can be trained on: sigma is estimated anew


def test_a_spectral_norm_is_saved_and_loaded(tmp_path: Path) -> None:
    small = slimilar.remove_channels(net(parametrizations.spectral_norm), X, {"0": [1, 4], "2": [5]})
    file = slimilar.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(slimilar.load(file, net(parametrizations.spectral_norm))(X), small(X))


OTHERS = {
    "orthogonal": parametrizations.orthogonal,
    "weight_norm along inputs": lambda m: parametrizations.weight_norm(m, dim=1),
}


@pytest.mark.parametrize("wrap", OTHERS.values(), ids=OTHERS)
def test_other_parametrisations_are_named(wrap: Any) -> None:
    frozen = {f.name: f.reason for f in slimilar.analyze(net(wrap), X, criterion="magnitude-l2").frozen}
    assert set(frozen) == {"0", "2", "4"}
    assert "in the parametrisation 0.parametrizations.weight.0" in frozen["0"]


def test_a_kernel_that_is_computed_from_the_input_is_named() -> None:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.made, self.inner = nn.Conv2d(3, 8, 3), nn.Linear(3, 8 * 4), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kernel = self.made(x.mean((0, 2, 3))).view(4, 8, 1, 1)
            return nn.functional.conv2d(self.a(x), kernel)

    found = {f.name: f.reason for f in slimilar.analyze(Hyper(), X, criterion="magnitude-l2").frozen}
    assert {"a", "made"} <= set(found)


def test_a_second_pruning_of_a_weight_norm_is_exact_from_the_first_original() -> None:
    model = net(parametrizations.weight_norm)
    once = slimilar.remove_channels(model, X, {"0": [0]})
    twice = slimilar.remove_channels(once, X, {"0": [3]})
    history = twice.slimilar_surgery
    again = operate(model, history)
    torch.testing.assert_close(again(X), twice(X))
