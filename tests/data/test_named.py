"""A dataset by its name or its path."""

from __future__ import annotations

import shutil

import pytest

from helpers.cifar_file import write_npz
from slimilar.data import (
    Normalisation,
    dataset,
)
from slimilar.errors import DataError


def test_dataset_by_name_or_place(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMILAR_DATA", str(tmp_path))
    write_npz(tmp_path / "cifar100.npz")
    assert len(dataset("cifar100", "test")) == len(dataset(tmp_path / "cifar100.npz", "test")) == 5
    place = tmp_path / "sets"
    place.mkdir()
    with pytest.raises(DataError, match="must hold a folder named test or val or validation"):
        dataset(place, "test")
    for split in ("train", "val"):
        for label in "012":
            shutil.copytree(folder / label, place / split / label)
    assert dataset(place, "train", size=16).size == 16
    assert len(dataset(place, "test")) == 9
    half = Normalisation((0.5,) * 3, (0.5,) * 3)
    assert dataset(place, "test", normalisation=half).normalisation == half
    shutil.rmtree(place / "val" / "1")
    with pytest.raises(DataError, match="'1' is missing"):
        dataset(place, "test")
    with pytest.raises(DataError, match=r"a .npz file or a folder, got 'cifar11'"):
        dataset("cifar11")
