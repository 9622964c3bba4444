"""Published checkpoints: what does not fit is named, and where the files are present they are as good as published."""

from __future__ import annotations

import os

import pytest
import torch

from slimilar.data import cifar, image_folder
from slimilar.errors import DataError, InvalidInput
from slimilar.models import CHECKPOINTS, ResNet, pretrained
from slimilar.models.checkpoints import load_state
from slimilar.train import evaluate

DATA = os.environ.get("SLIMILAR_DATA", "")


def test_load_state_says_what_does_not_fit():
    state = ResNet(8).state_dict()
    with pytest.raises(InvalidInput, match=r"layer1.1.bn1.bias is missing"):
        load_state(ResNet(14), state)
    with pytest.raises(InvalidInput, match="another width"):
        load_state(ResNet(8, width=2), state)


def test_pretrained_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.delenv("SLIMILAR_DATA", raising=False)
    with pytest.raises(DataError, match="SLIMILAR_DATA"):
        pretrained("resnet20-cifar10")
    with pytest.raises(DataError, match=r"resnet20-cifar10.safetensors"):
        pretrained("resnet20-cifar10", tmp_path)
    with pytest.raises(InvalidInput, match="resnet56-cifar100"):
        pretrained("resnet57-cifar100", tmp_path)


def present(name: str, dataset: str) -> bool:
    data = {"imagenet": "imagenet"}.get(dataset, f"{dataset}.npz")
    return bool(DATA) and all(os.path.exists(os.path.join(DATA, f)) for f in (f"{name}.safetensors", data))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint_is_as_good_as_published(name):
    entry = CHECKPOINTS[name]
    if not present(name, entry.dataset):
        pytest.skip(f"set SLIMILAR_DATA to a folder with {name}.safetensors and {entry.dataset}")
    found = pretrained(name)
    if entry.dataset == "imagenet":
        data = image_folder(os.path.join(DATA, "imagenet"), normalisation=found.normalisation)
    else:
        data = cifar(entry.dataset, "test").normalised(found.normalisation)
    count = 30 if entry.dataset == "imagenet" else 200
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count]
    images, labels = data.batch(chosen)
    with torch.inference_mode():
        accuracy = float((found.model(images).argmax(1) == labels).float().mean())
    spread = (entry.accuracy * (1 - entry.accuracy) / count) ** 0.5
    assert abs(accuracy - entry.accuracy) < 3 * spread


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if "cifar" in name])
def test_checkpoint_on_all_test_images(name):
    entry = CHECKPOINTS[name]
    if not present(name, entry.dataset):
        pytest.skip(f"set SLIMILAR_DATA to a folder with {name}.safetensors and {entry.dataset}")
    found = pretrained(name)
    score = evaluate(found.model, cifar(entry.dataset, "test").normalised(found.normalisation))
    assert score.accuracy == pytest.approx(entry.accuracy, abs=2e-4)
