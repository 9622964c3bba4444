"""`slimilar finetune` on a model that was fitted to images: the recipe, the teacher, and no labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import slimilar
from helpers.commands import run
from slimilar.data import demo_images
from slimilar.deploy.file_format import inspect


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo network that was pruned with 32 images."""
    folder = tmp_path_factory.mktemp("fitted") / "small"
    few = ["--flops", "0.6", "--calibrate", "demo", "--images", "32", "--criterion", "magnitude-l2"]
    run("prune", "slimilar:demo", *few, "-o", folder)
    return folder / "model.safetensors"


def statistics(file: object) -> dict[str, torch.Tensor]:
    held = slimilar.load(str(file)).state_dict()
    return {name: tensor for name, tensor in held.items() if "running" in name}


def test_a_fitted_model_keeps_its_statistics_and_learns_from_the_original(fitted, tmp_path):
    assert inspect(fitted).info["fitted images"] == 32
    said = run("finetune", fitted, "--data", "demo", "--epochs", 1, "--limit", 64, "-o", tmp_path / "tuned")
    plain = " ".join(said.split())
    assert "recipe reconstructed" in plain
    assert "reconstructed on 32 images" in plain
    assert "teacher: slimilar:demo" in plain
    tuned = tmp_path / "tuned" / "model.safetensors"
    before, after = statistics(fitted), statistics(tuned)
    assert before
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert inspect(tuned).info["note"]["fitted images"] == 32  # so that a further training is gentle too


def test_another_recipe_can_be_named(fitted, tmp_path):
    short = ["--data", "demo", "--epochs", 1, "--limit", 64]
    said = run("finetune", fitted, *short, "--recipe", "quick", "-o", tmp_path / "tuned")
    assert "reconstructed" not in said
    before, after = statistics(fitted), statistics(tmp_path / "tuned" / "model.safetensors")
    assert not any(torch.equal(before[name], after[name]) for name in before if "mean" in name)


def test_a_folder_without_labels_is_enough(fitted, tmp_path):
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(demo_images("train").first(48).images):
        Image.fromarray(image.numpy()).save(tmp_path / "photos" / f"{i}.png")
    found = json.loads(
        run(
            "finetune",
            fitted,
            "--data",
            tmp_path / "photos",
            "--unlabelled",
            "--epochs",
            1,
            "-o",
            tmp_path / "t",
            "--json",
        )
    )
    assert found["accuracy"] is None
    assert 0 <= found["history"][0]["accuracy"] <= 1
    weights, before = (slimilar.load(file).state_dict() for file in (found["model"], fitted))
    assert any(not torch.equal(weights[name], before[name]) for name in before)


def test_without_labels_there_must_be_a_teacher(tmp_path):
    small = tmp_path / "small"
    run("prune", "slimilar:demo", "--flops", "0.6", "-o", small)
    said = run(
        "finetune", small / "model.safetensors", "--data", "demo", "--unlabelled", "-o", tmp_path / "t", code=2
    )  # fmt: skip
    assert "--unlabelled needs a teacher" in " ".join(said.split())
