"""The images that ship with the package: some of CIFAR-10, for a first try without a download."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from slimilar.data.cifar import CIFAR10_CLASSES, NORMALISATIONS, Split
from slimilar.data.images import Images
from slimilar.errors import InvalidInput

SIDE = 32
COLUMNS = {"test": 40, "train": 16}


def demo_images(split: Split = "test") -> Images:
    """Return 1,000 test images, 100 of each class, or 256 training images, normalised for the demo network.

    >>> len(demo_images("test")), len(demo_images("train"))
    (1000, 256)
    """
    if split not in COLUMNS:
        raise InvalidInput(f"split must be 'test' or 'train', got {split!r}")
    folder = files("slimilar.data") / "demo_assets"
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))[split]
    with (folder / f"{split}.png").open("rb") as file, Image.open(file) as sheet:
        images = _cut(np.asarray(sheet))
    return Images(torch.from_numpy(images), torch.tensor(labels), NORMALISATIONS["cifar10"], CIFAR10_CLASSES)


def write_demo_images(folder: Path, images: Images, split: Split) -> None:
    """Write images as one sheet that can be looked at; ``demo_images`` reads it."""
    sheet = _laid_out(images.images.numpy(), COLUMNS[split])
    Image.fromarray(sheet).save(folder / f"{split}.png", optimize=True)


def _laid_out(images: np.ndarray, columns: int) -> np.ndarray:
    rows = len(images) // columns
    tiles = images.reshape(rows, columns, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows * SIDE, columns * SIDE, 3)


def _cut(sheet: np.ndarray) -> np.ndarray:
    rows, columns = sheet.shape[0] // SIDE, sheet.shape[1] // SIDE
    tiles = sheet.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles.reshape(rows * columns, SIDE, SIDE, 3))
