"""Write stand-ins for what a reader of the documentation has: net.py, its weights, photos, a saved model, CIFAR-10.

python scripts/stand_ins.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import slimilar
from slimilar.data import demo_images
from slimilar.deploy.model_names import parse
from slimilar.deploy.sources import build
from slimilar.models import demo_network

NETWORK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class MyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
"""
CLASSES = {"cat": 3, "dog": 5}  # and their labels in CIFAR-10
_PHOTOS = 20  # of each class and split
_ROWS = 128  # of each split of the small CIFAR-10


def write_network(folder: Path, more: str = "") -> nn.Module:
    """Write net.py, with more classes if there are any, and return its network with weights."""
    (folder / "net.py").write_text(NETWORK + more, encoding="utf-8")
    torch.manual_seed(0)
    model = build(parse(f"{folder}/net.py:MyNetwork"))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # fresh ones are all alike, and every channel would be similar
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    return model


def write_photos(folder: Path) -> None:
    """Write a folder of images for training and testing, one folder for each class."""
    for split in ("train", "test"):
        source = demo_images(split)
        for name, label in CLASSES.items():
            place = folder / split / name
            place.mkdir(parents=True)
            for i, pixels in enumerate(source.images[source.labels == label][:_PHOTOS].numpy()):
                Image.fromarray(pixels).save(place / f"{i:02}.png")


def main(folder: Path) -> None:
    """Write all of them."""
    weights = write_network(folder).state_dict()
    torch.save(weights, folder / "weights.pt")
    torch.save({"state_dict": weights, "epoch": 9}, folder / "trained.pt")
    write_photos(folder / "photos")
    slimilar.save(demo_network(), folder / "saved.safetensors", source="slimilar:demo")
    arrays: dict[str, Any] = {}  # as `savez` declares it
    for split in ("train", "test"):
        few = demo_images(split).first(_ROWS)
        arrays |= {f"x_{split}": few.images.numpy(), f"y_{split}": few.labels.numpy()}
    np.savez(folder / "cifar10.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
