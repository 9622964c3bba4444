"""Every public function works where the model is, and agrees with the CPU."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.fitting import images, small_net
from slimilar.calibration.synthesis import synthesize
from slimilar.criteria import available, facts, make
from slimilar.data import Images
from slimilar.reconstruction.methods import Reconstruction
from slimilar.train import Recipe, evaluate, finetune, train

pytestmark = pytest.mark.accelerator


def placed(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, Tensor]:
    """Return a network on the device and an example there."""
    return small_net().to(device, dtype), images(1).to(device, dtype)


def on_device(model: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
    floating = [t for t in model.state_dict().values() if t.is_floating_point()]
    return {t.device.type for t in model.state_dict().values()} == {device.type} and {
        t.dtype for t in floating
    } == {dtype}


def agree(found: nn.Module, wanted: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Check that two models are the same within the precision of what they were computed in."""
    near = {"rtol": 2e-2, "atol": 2e-3} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 2e-2}
    x = images(16)
    given, expected = found.cpu().float()(x), wanted.float()(x)
    assert given.shape == expected.shape
    torch.testing.assert_close(given, expected, **near)


# One of the methods looks at images.
METHODS = [
    *((str(name), "data-free") for name in Reconstruction if name != Reconstruction.LEAST_SQUARES),
    ("least-squares", "images on the CPU"),
    ("least-squares", "images on the device"),
]


@functools.cache
def pruned_on_the_cpu(name: str | None, seen: bool) -> slimilar.Result:
    """Return what to agree with; without a name, what `prune` decides by itself."""
    options = {} if name is None else {"reconstruction": name, "criterion": "similarity"}
    given = images(64) if seen else None
    return slimilar.prune(small_net(), images(1), flops=0.6, calibration=given, **options)


@pytest.mark.parametrize(("name", "seen"), METHODS)
def test_prune_with_every_reconstruction(
    name: str, seen: str, device: torch.device, dtype: torch.dtype
) -> None:
    net, example = placed(device, dtype)
    given = None if seen == "data-free" else images(64) if "CPU" in seen else images(64).to(device)
    result = slimilar.prune(
        net, example, flops=0.6, calibration=given, reconstruction=name, criterion="similarity"
    )
    assert on_device(result.model, device, dtype)
    assert on_device(net, device, dtype)
    if dtype is torch.float32:
        wanted = pruned_on_the_cpu(name, given is not None)
        assert result.kept == wanted.kept
        agree(result.model, wanted.model, dtype)


def test_prune_decides_by_itself(device: torch.device, dtype: torch.dtype) -> None:
    net, example = placed(device, dtype)
    result = slimilar.prune(net, example, flops=0.6, calibration=images(64))
    assert on_device(result.model, device, dtype)
    assert result.error is not None
    if dtype is torch.float32:
        wanted = pruned_on_the_cpu(None, True)
        assert result.kept == wanted.kept
        agree(result.model, wanted.model)


def planned(name: str, net: nn.Module, example: Tensor) -> slimilar.Plan:
    made = make(name, trained=True) if facts(name).needs == "training" else name
    return slimilar.analyze(net, example, criterion=made, calibration=images(64), labels=torch.arange(64) % 4)


@functools.cache
def planned_on_the_cpu(name: str, dtype: torch.dtype) -> slimilar.Plan:
    """Return what to agree with, from the same weights."""
    return planned(name, small_net().to(dtype).float(), images(1))


@pytest.mark.parametrize("name", available())
def test_every_criterion(name: str, device: torch.device, dtype: torch.dtype) -> None:
    plan, wanted = planned(name, *placed(device, dtype)), planned_on_the_cpu(name, dtype)
    assert [g.name for g in plan.groups] == [g.name for g in wanted.groups]
    if dtype is torch.float32 and plan.groups:
        for mine, theirs in zip(plan.orders, wanted.orders, strict=True):
            assert mine.removed.tolist() == theirs.removed.tolist()


def test_apply_remove_channels_and_count(device: torch.device, dtype: torch.dtype) -> None:
    net, example = placed(device, dtype)
    plan = slimilar.analyze(net, example)
    result = slimilar.apply(net, example, plan, plan.at(flops=0.6))
    assert on_device(result.model, device, dtype)
    small = slimilar.remove_channels(net, example, {"0": [1, 2]})
    assert on_device(small, device, dtype)
    assert slimilar.count(small, example).flops < slimilar.count(net, example).flops


def test_save_and_load(device: torch.device, dtype: torch.dtype, tmp_path: Path) -> None:
    net, example = placed(device, dtype)
    result = slimilar.prune(net, example, flops=0.6)
    slimilar.save(result, tmp_path / "small.safetensors")
    again = slimilar.load(tmp_path / "small.safetensors", placed(device, dtype)[0])
    assert on_device(again, device, dtype)
    for a, b in zip(again.state_dict().values(), result.model.state_dict().values(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_recalibrate(device: torch.device, dtype: torch.dtype) -> None:
    net, example = placed(device, dtype)
    small = slimilar.recalibrate(net, example, images(64))
    assert on_device(small, device, dtype)
    agree(small, slimilar.recalibrate(small_net(), images(1), images(64)), dtype)


def test_synthesize(device: torch.device, dtype: torch.dtype) -> None:
    net, example = placed(device, dtype)
    made = synthesize(net, example, count=8, steps=3)
    assert made.dtype == dtype
    wanted = synthesize(small_net().to(dtype).float(), images(1), count=8, steps=3)
    torch.testing.assert_close(made.cpu().float(), wanted, rtol=1e-2, atol=1e-2)
    result = slimilar.prune(net, example, flops=0.6, criterion="similarity", calibration=made)
    assert on_device(result.model, device, dtype)


def dataset() -> Images:
    pixels = torch.randint(
        0, 256, (32, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Images(pixels, torch.arange(32) % 4)


def test_evaluate(device: torch.device, dtype: torch.dtype) -> None:
    net, _ = placed(device, dtype)
    found, wanted = evaluate(net, dataset()), evaluate(small_net(), dataset())
    assert found.images == wanted.images == 32
    assert found.loss == pytest.approx(wanted.loss, rel=1e-4 if dtype is torch.float32 else 2e-2)


def test_a_training_step(device: torch.device) -> None:
    net, _ = placed(device)
    recipe = Recipe(epochs=1, batch_size=16, lr=0.01)
    result = train(net, dataset(), recipe, test=dataset(), teacher=net)
    assert on_device(result.model, device, torch.float32)
    wanted = train(small_net(), dataset(), recipe, test=dataset(), teacher=small_net())
    agree(result.model, wanted.model)
    assert finetune(net, dataset(), recipe, test=dataset()).start_accuracy is not None
