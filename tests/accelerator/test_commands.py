"""The command line on a device, and what is measured there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from helpers.fitting import images, small_net
from slimilar.cli import app
from slimilar.deploy.latency import measure
from slimilar.deploy.runtimes import pytorch

pytestmark = pytest.mark.accelerator


def run(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*words, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_commands_take_a_device_and_a_precision(precision: str, device: torch.device, tmp_path: Path) -> None:
    where = ["--device", str(device), "--dtype", precision]
    assert run("analyze", "slimilar:demo", *where)["groups"]
    run("prune", "slimilar:demo", "--flops", "0.6", "-o", str(tmp_path), *where)
    file = str(tmp_path / "model.safetensors")
    found = run("evaluate", file, "--limit", "50", *where)[file]
    assert isinstance(found, dict)
    assert found["images"] == 50
    timed = run("bench", "slimilar:demo", file, "--seconds", "0", *where)
    assert timed["device"] == str(device)
    assert timed["hardware"]


def test_training_with_and_without_mixed_precision(device: torch.device, tmp_path: Path) -> None:
    words = ["finetune", "slimilar:demo", "--data", "demo", "--limit", "16", "--epochs", "1"]
    found = run(*words, "-o", str(tmp_path / "plain"), "--device", str(device), "--amp", "off")
    assert isinstance(found["accuracy"], float)


def test_runs_are_timed_on_the_device(device: torch.device) -> None:
    net, x = small_net().to(device), images(1).to(device)
    timings = measure({"net": pytorch(net, x)}, seconds=0, least=3, device=device)
    assert timings.samples.shape == (3, 1)
    assert (timings.samples > 0).all()
