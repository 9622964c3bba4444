"""Whatever happens, the last good checkpoint is whole, and a resumed run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from helpers.digits import digits, network
from helpers.paths import TESTS
from slimilar.data import image_folder
from slimilar.errors import DataError, TrainingError
from slimilar.train import LAST, Hooks, Recipe, TrainingSettings, train
from slimilar.train.checkpoint import load_checkpoint, save_checkpoint, write_file
from slimilar.train.training_log import read_log

RECIPE = Recipe(epochs=3, batch_size=32, lr=0.05)
QUIET = TrainingSettings(tensorboard=False, log_every=1)


def killed_trainings(place: Path, kills: int) -> dict[str, object]:
    command = [sys.executable, "-W", "error", "-m", "helpers.killed_training", str(place), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path, kills):
    """Killed at steps, before and after each sync and rename, and at random times; twice in every trial."""
    found = killed_trainings(tmp_path, kills)
    assert found["wrong"] == []
    assert found["killed"] > found["trials"]


def bad_from(step: int) -> Hooks:
    """A loss that is not a number from some step on, as after a learning rate too high."""
    calls = []

    def broken(model):
        calls.append(1)
        return model[-1].weight.sum() * (float("nan") if len(calls) > step else 0.0)

    return Hooks(regulariser=broken)


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_not_a_number(tmp_path, log_every):
    settings = replace(QUIET, log_every=log_every)
    with pytest.raises(TrainingError, match=r"loss must be finite, but it became nan in epoch 2.*is intact"):
        train(network(), digits(0, 96), RECIPE, folder=tmp_path, hooks=bad_from(4), settings=settings)
    tensors, info = load_checkpoint(tmp_path / LAST)
    assert info["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    save_checkpoint(tmp_path / LAST, {"a": torch.ones(1)}, {})
    with pytest.raises(TrainingError, match="weights must be finite, but a is not"):
        save_checkpoint(tmp_path / LAST, {"a": torch.tensor([float("inf")])}, {})
    assert load_checkpoint(tmp_path / LAST)[0]["a"] == 1


def limit_files(size: int) -> None:
    """Let no file grow beyond some size: writing fails in the middle of a file, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def small_disk(size: int | None = None):
    """Limit files now or later, and lift the limit before the test ends: its own output may go to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if size is not None:
            limit_files(size)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_file(tmp_path):
    file = tmp_path / "file"
    write_file(file, b"old" * 100)
    message = r"could not be written \(File too large\).*is intact"
    with small_disk(4096), pytest.raises(TrainingError, match=message):
        write_file(file, b"new" * 10_000)
    assert file.read_bytes() == b"old" * 100
    assert list(tmp_path.iterdir()) == [file]


def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    file = tmp_path / "file"
    write_file(file, b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_training_goes_on_after_a_full_disk(tmp_path):
    def fill(model, epoch):
        if epoch == 2:
            limit_files(8192)

    data = digits(0, 96)
    with small_disk(), pytest.raises(TrainingError, match="free some space"):
        train(network(), data, RECIPE, folder=tmp_path / "a", settings=QUIET, hooks=Hooks(on_epoch_end=fill))
    assert load_checkpoint(tmp_path / "a" / LAST)[1]["epoch"] == 1
    resumed = train(network(), data, RECIPE, folder=tmp_path / "a", settings=QUIET, resume=True)
    whole = train(network(), data, RECIPE, folder=tmp_path / "b", settings=QUIET)
    assert resumed.history == whole.history
    assert (tmp_path / "a" / LAST).read_bytes() == (tmp_path / "b" / LAST).read_bytes()


def test_a_log_that_cannot_be_written(tmp_path):
    data = digits(0, 96)
    train(network(), data, RECIPE, folder=tmp_path, settings=QUIET)
    with small_disk(100), pytest.raises(TrainingError, match="could not be written"):
        train(network(), data, RECIPE, folder=tmp_path, settings=QUIET, resume=True)
    with small_disk(100), pytest.raises(TrainingError, match=r"log.jsonl could not be written .*is intact"):
        train(network(), data, RECIPE, folder=tmp_path / "new", settings=QUIET)


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_a_checkpoint_cut_short(tmp_path, size):
    train(network(), digits(0, 64), RECIPE, folder=tmp_path, settings=QUIET)
    content = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(content[:size])
    with pytest.raises(
        TrainingError, match=r"last.safetensors must be a Slimilar checkpoint, .* delete it to start again"
    ):
        train(network(), digits(0, 64), RECIPE, folder=tmp_path, settings=QUIET, resume=True)


def test_a_safetensors_file_of_somebody_else(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / LAST)
    with pytest.raises(TrainingError, match="must be a Slimilar checkpoint"):
        train(network(), digits(0, 64), RECIPE, folder=tmp_path, settings=QUIET, resume=True)


def test_a_checkpoint_of_another_network(tmp_path):
    train(network(), digits(0, 64), RECIPE, folder=tmp_path, settings=QUIET)
    with pytest.raises(TrainingError, match="same network"):
        train(network()[:-1], digits(0, 64), RECIPE, folder=tmp_path, settings=QUIET, resume=True)


def test_a_log_line_cut_short(tmp_path):
    data = digits(0, 96)
    whole = train(network(), data, RECIPE, folder=tmp_path, settings=QUIET)
    log = read_log(tmp_path)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"epoch": 2, "step": 9, "lo')
    again = train(network(), data, RECIPE, folder=tmp_path, settings=QUIET, resume=True)
    assert read_log(tmp_path) == log
    assert again.history == whole.history


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, whoever forks
@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_in_the_middle_of_training(tmp_path, workers):
    images = digits(0, 24)
    for i, (image, label) in enumerate(zip(images.images.numpy(), images.labels.tolist(), strict=True)):
        place = tmp_path / "images" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[:, :, 0]).save(place / f"{i}.png")
    data = image_folder(tmp_path / "images", size=8, workers=workers)
    victim = data.files[5]

    def corrupt(model, epoch):
        victim.write_bytes(victim.read_bytes()[:60])

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), network())
    recipe, run = Recipe(epochs=2, batch_size=12, lr=0.01), tmp_path / "run"
    with pytest.raises(DataError, match=rf"^\S*{victim.name} must be a complete image[^\n]*remove it$"):
        train(model, data, recipe, folder=run, settings=QUIET, hooks=Hooks(on_epoch_end=corrupt))
    assert load_checkpoint(run / LAST)[1]["epoch"] == 1


@pytest.mark.slow
def test_mixed_precision_where_the_processor_has_it(tmp_path):
    """In a process of its own: some processors announce what they then stop at with an illegal instruction."""
    program = (
        "from helpers.digits import digits, network; from slimilar.train import *\n"
        "recipe = Recipe(epochs=4, batch_size=32, lr=0.1, schedule='one-cycle', warmup=0.2)\n"
        "settings = TrainingSettings(precision='float16', tensorboard=False)\n"
        f"more = {{'test': digits(1200), 'folder': {str(tmp_path)!r}, 'settings': settings}}\n"
        "result = train(network(), digits(0, 600), recipe, **more)\n"
        "assert result.accuracy > 0.8, result.accuracy\n"
        "assert all(p.dtype.itemsize == 4 for p in result.model.parameters())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=TESTS, capture_output=True, text=True
    )
    if done.returncode == -signal.SIGILL:
        pytest.skip("this processor cannot do what it announces")
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(tmp_path / LAST)[1]["scaler"]["scale"] > 0
