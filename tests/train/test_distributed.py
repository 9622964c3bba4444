"""Two processes learn what one learns: the same batches, the same batch statistics, the same gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers import distributed_training
from helpers.paths import TESTS
from slimilar.errors import TrainingError
from slimilar.train.distributed import DistributedContext
from slimilar.train.synchronized_batch_norm import synchronized_batch_norm

PROGRAM = "helpers.distributed_training"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# On GPUs accelerate starts its processes as torchrun does; on CPUs it wants MPI for more than one.
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip


def launch(launcher: list[str], place: Path) -> None:
    done = subprocess.run(
        [sys.executable, *launcher, "-m", PROGRAM, str(place)],
        capture_output=True, text=True, timeout=280, check=False, cwd=TESTS, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def assert_same(answer: dict[str, Any], alone: dict[str, Any]) -> None:
    for ours, theirs in zip(answer["history"], alone["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    for name, value in alone["state"].items():
        torch.testing.assert_close(
            torch.tensor(answer["state"][name]), torch.tensor(value), rtol=1e-4, atol=1e-5
        )


def test_two_processes_equal_one(tmp_path):
    launch(TORCHRUN, tmp_path)
    first, second = (json.loads((tmp_path / f"answer-{rank}-of-2.json").read_text()) for rank in range(2))
    assert first == second
    assert_same(first, distributed_training.run(tmp_path / "alone"))


@pytest.mark.slow
def test_accelerate_launch(tmp_path):
    launch(ACCELERATE, tmp_path)
    assert_same(
        json.loads((tmp_path / "answer-0-of-1.json").read_text()),
        distributed_training.run(tmp_path / "alone"),
    )


def test_a_launcher_that_went_unnoticed(monkeypatch):
    """Processes that do not see each other would write over each other's checkpoints."""
    DistributedContext.join()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(TrainingError, match="4 processes must be connected, got a group of 1"):
        DistributedContext.join()


def test_synchronized_batch_norm_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.BatchNorm2d(3))
    with synchronized_batch_norm(model, 2):
        assert "forward" in model[0].__dict__
    assert "forward" not in model[0].__dict__
