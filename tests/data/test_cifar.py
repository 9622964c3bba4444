"""CIFAR from its files, whole and broken."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from helpers.cifar_file import write_npz
from slimilar.data import (
    cifar,
    demo_images,
)
from slimilar.errors import DataError, InvalidInput


def test_cifar_from_npz(tmp_path, monkeypatch):
    images = write_npz(tmp_path / "cifar10.npz")
    by_file, by_folder = (
        cifar("cifar10", "train", tmp_path / "cifar10.npz"),
        cifar("cifar10", "test", tmp_path),
    )
    assert np.array_equal(by_file.images.numpy(), images)
    assert len(by_folder) == 5
    assert by_folder.class_names[3] == "cat"
    monkeypatch.setenv("SLIMILAR_DATA", str(tmp_path))
    assert len(cifar("cifar10")) == 20


def test_cifar100_carries_its_class_names(tmp_path):
    write_npz(tmp_path / "cifar100.npz", classes=np.array([f"class {i}" for i in range(100)]))
    assert cifar("cifar100", "test", tmp_path).class_names[99] == "class 99"


def test_cifar_as_torchvision_stores_it(tmp_path):
    """torchvision checks hashes of the real files, so a made-up archive is refused."""
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"made up")
    with pytest.raises(
        DataError, match=r"must hold cifar10.npz or torchvision's cifar10 files.*download=True"
    ):
        cifar("cifar10", "train", tmp_path)


def test_cifar_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.delenv("SLIMILAR_DATA", raising=False)
    with pytest.raises(DataError, match="SLIMILAR_DATA"):
        cifar("cifar10")
    with pytest.raises(InvalidInput, match="must be one of cifar10, cifar100, got 'mnist'"):
        cifar("mnist", path=tmp_path)
    with pytest.raises(InvalidInput, match="must be 'train' or 'test'"):
        cifar("cifar10", "validation", tmp_path)
    with pytest.raises(DataError, match="there is no such file"):
        cifar("cifar10", "train", tmp_path / "missing.npz")
    write_npz(tmp_path / "cifar10.npz", labels=20)
    with pytest.raises(DataError, match="must lie in 0 to 9, got 0 to 19"):
        cifar("cifar10", "train", tmp_path)
    np.savez(tmp_path / "half.npz", x_train=np.zeros(1))
    with pytest.raises(DataError, match="must hold x_train and y_train"):
        cifar("cifar10", "train", tmp_path / "half.npz")


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_cifar_file_cut_short(tmp_path, size):
    write_npz(tmp_path / "cifar10.npz")
    content = (tmp_path / "cifar10.npz").read_bytes()
    (tmp_path / "cifar10.npz").write_bytes(content[:size])
    with pytest.raises(DataError, match=r"must be a complete \.npz file"):
        cifar("cifar10", "train", tmp_path)


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "cifar10.npz", x_train=np.array([{}], dtype=object), y_train=np.zeros(1))
    with pytest.raises(DataError, match="without pickles"):
        cifar("cifar10", "train", tmp_path)


@pytest.mark.skipif(not os.path.exists(os.path.join(os.environ.get("SLIMILAR_DATA", ""), "cifar10.npz")),
                    reason="set SLIMILAR_DATA to a folder with cifar10.npz")  # fmt: skip
def test_real_cifar10():
    train, test = cifar("cifar10", "train"), cifar("cifar10", "test")
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    mean = train.images.float().mean((0, 1, 2)) / 255
    torch.testing.assert_close(mean, torch.tensor(train.normalisation.mean), atol=1e-3, rtol=0)
    assert torch.equal(demo_images("train").images, train.images[:256])
    known = {
        image.numpy().tobytes(): int(label) for image, label in zip(test.images, test.labels, strict=True)
    }
    shown = demo_images("test")
    assert [known[image.numpy().tobytes()] for image in shown.images] == shown.labels.tolist()
