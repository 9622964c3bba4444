"""Some of a user's images: datasets are often sorted by class, and the first of them show one class only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from slimilar.cli.images import ImageReader
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output
from slimilar.cli.preprocessing_options import PreprocessingOptions

CLASSES, EACH = 10, 6


@pytest.fixture
def sorted_file(tmp_path: Path) -> Path:
    """Sixty images in the order of their classes, in each of which every pixel is the number of the class."""
    labels = np.repeat(np.arange(CLASSES), EACH)
    pictures = np.broadcast_to(labels[:, None, None, None], (len(labels), 32, 32, 3)).astype(np.uint8)
    arrays = {
        f"{kind}_{split}": a for split in ("train", "test") for kind, a in (("x", pictures), ("y", labels))
    }
    np.savez(tmp_path / "cifar10.npz", **arrays)
    np.savez(tmp_path / "mine.npz", images=pictures, labels=labels)
    return tmp_path


def reader() -> ImageReader:
    opened = OpenedModel(nn.Identity(), ((3, 32, 32),), None, "net.py:Net", None)
    return ImageReader(Output(quiet=True), opened, PreprocessingOptions())


def test_a_limit_takes_images_of_all_classes(sorted_file: Path) -> None:
    found = reader().labelled(str(sorted_file / "cifar10.npz"), "test", CLASSES)
    assert found.labels.unique().tolist() == list(range(CLASSES))
    assert len(reader().labelled(str(sorted_file / "cifar10.npz"), "test", 1000)) == CLASSES * EACH


@pytest.mark.parametrize("name", ["cifar10.npz", "mine.npz"])
def test_calibration_images_are_of_all_classes(sorted_file: Path, name: str) -> None:
    found = reader().calibration(str(sorted_file / name), CLASSES, labels=True)
    assert found.labels.tolist() == list(range(CLASSES))
    brightness = found.images.flatten(1).mean(1)
    assert torch.equal(brightness.argsort(), torch.arange(CLASSES))  # image and label belong together
