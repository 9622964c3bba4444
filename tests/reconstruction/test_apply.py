"""From a cut to a model: settings, names of methods, and what is verified."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import slimilar
from helpers.fitting import images, small_net
from slimilar.errors import InvalidInput, VerificationError
from slimilar.reconstruction.apply import reconstructed_model, settings_for
from slimilar.reconstruction.methods import OPTIONS, Reconstruction, reconstruction_method
from slimilar.reconstruction.verify import verify_reconstruction


def test_a_large_network_is_fitted_without_flips_and_to_fewer_samples() -> None:
    plan = slimilar.analyze(small_net(), images(1))
    few = settings_for(plan, 16, seed=3)
    many = settings_for(plan, 10**12 // plan.before.flops + 1, seed=3)
    assert (few.mirror, many.mirror) == (True, False)
    assert (few.rows, many.rows) == (24, 8)
    assert (few.steps, few.effort) == (many.steps, many.effort)
    assert few.seed == many.seed == 3


def test_linear_is_the_gaussian_without_images_and_least_squares_with_them() -> None:
    net, x = small_net(), images(64)
    plan = slimilar.analyze(net, x[:1])
    cut = plan.at(flops=0.6)
    for name, given in (("gaussian", None), ("least-squares", x)):
        old, new = (
            reconstructed_model(net, x[:1], plan, cut, how, given, 0, None).model for how in ("linear", name)
        )
        assert all(torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True))
    data_free = reconstructed_model(net, x[:1], plan, cut, "gaussian", x, 0, None).model
    again = reconstructed_model(net, x[:1], plan, cut, "gaussian", None, 0, None).model
    assert all(torch.equal(a, b) for a, b in zip(data_free.parameters(), again.parameters(), strict=True))


def test_names_are_resolved_by_whether_there_are_images() -> None:
    for name in ("auto", "linear"):
        assert reconstruction_method(name, images=True) is Reconstruction.LEAST_SQUARES
        assert reconstruction_method(name, images=False) is Reconstruction.GAUSSIAN
    for name in set(OPTIONS) - {"auto", "linear"}:
        assert reconstruction_method(name, images=True) == name
    with pytest.raises(InvalidInput, match="needs calibration images"):
        reconstruction_method("least-squares", images=False)
    with pytest.raises(InvalidInput, match="did you mean gaussian"):
        reconstruction_method("gausian", images=False)


@pytest.mark.parametrize("how", ["merge", "mean", "gaussian", "least-squares"])
def test_the_returned_model_is_the_verified_one(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spoil only the reconstructed model, and only after it was fitted: the plain rewrite is sound."""
    module = sys.modules["slimilar.reconstruction.apply"]
    rebuild = module.rebuild

    def spoilt(*args: object) -> object:
        small, done = rebuild(*args)
        with torch.no_grad():
            small[3].weight[0, 0] += 0.1
        return small, done

    given = images(64) if how == "least-squares" else None
    sound = slimilar.prune(
        small_net(), images(1), flops=0.6, substitute=how, criterion="similarity", calibration=given
    )
    assert sound.error is not None
    assert sound.error < 1e-5
    monkeypatch.setattr(module, "rebuild", spoilt)
    with pytest.raises(VerificationError, match="reconstructed weights"):
        slimilar.prune(
            small_net(), images(1), flops=0.6, substitute=how, criterion="similarity", calibration=given
        )


class Bare(nn.Module):
    """A layer that is no module of torch's own, and so has no place for a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 10, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


def test_a_constant_that_no_layer_can_hold_is_left_out_and_verified_so() -> None:
    body = small_net()
    net = nn.Sequential(*body[:3], nn.AdaptiveAvgPool2d(1), nn.Flatten(), Bare()).eval()
    result = slimilar.prune(net, images(1), ratio=0.5, substitute="mean")
    assert result.error is not None
    assert result.error < 1e-5
    assert result.surgery.biases == frozenset()


def test_verification_decides_in_float64() -> None:
    net, x = small_net(), images(1)
    plan = slimilar.analyze(net, x)
    made = reconstructed_model(net, x, plan, plan.at(flops=0.6), "gaussian", None, 0, None)
    given = (made.program, plan.structure.grouping, made.network, made.model, x)
    assert verify_reconstruction(*given) < 1e-5
    made.network.pruned["3.weight"] = made.network.pruned["3.weight"] * (1 + 1e-3)
    with pytest.raises(VerificationError, match="differ by"):
        verify_reconstruction(*given)


def test_code_that_does_not_run_in_float64_is_refused_where_float32_cannot_tell() -> None:
    class Single(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not torch.float32:
                raise TypeError("float32 only")
            return x

    net, x = nn.Sequential(small_net(), Single()).eval(), images(1)
    plan = slimilar.analyze(net, x)
    made = reconstructed_model(net, x, plan, plan.at(flops=0.6), "gaussian", None, 0, None)
    given = (made.program, plan.structure.grouping, made.network, made.model, x)
    assert verify_reconstruction(*given) < 1e-5
    made.network.pruned["0.3.weight"] = made.network.pruned["0.3.weight"] * (1 + 1e-3)
    with pytest.raises(VerificationError, match="float64 would tell, but there the model raised"):
        verify_reconstruction(*given)
