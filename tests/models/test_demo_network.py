"""The demo network: trained by this code, on real images, and as good as its record says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import slimilar
from helpers.paths import ROOT
from slimilar.data import demo_images
from slimilar.models import demo_network, demo_record
from slimilar.train import evaluate

FOLDER = Path(slimilar.__file__).parent / "data" / "demo_assets"


def test_it_is_above_ninety_percent():
    record = demo_record()
    assert record["test_images"] == 10_000
    assert record["test_accuracy"] > 0.9


def test_it_is_as_good_as_its_record_says():
    right = evaluate(demo_network(), demo_images("test")).accuracy
    # Another processor may round a image or two over the edge.
    assert right == pytest.approx(demo_record()["test_accuracy_of_the_shipped_images"], abs=0.003)
    assert right > 0.87


def test_it_saw_its_training_images():
    assert evaluate(demo_network(), demo_images("train")).accuracy > 0.9


def test_the_record_says_how_to_make_it_again():
    record = demo_record()
    assert (ROOT / "experiments" / "demo_network.py").exists()
    assert "experiments.demo_network" in record["command"]
    assert record["seed"] == 0
    assert len(record["history"]) == sum(recipe["epochs"] for recipe in record["recipes"])
    assert record["history"][-1]["test_accuracy"] == pytest.approx(record["test_accuracy"], abs=0.002)


def test_it_is_small_and_holds_no_pickle():
    names = {"labels.json", "network.json", "network.safetensors", "test.png", "train.png"}
    assert {file.name for file in FOLDER.iterdir()} == names
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 8e6


def test_each_call_gives_a_network_of_its_own():
    first, second = demo_network(), demo_network()
    assert not first.training
    with torch.no_grad():
        first.classifier.weight.zero_()
    assert second.classifier.weight.any()
