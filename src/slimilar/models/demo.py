"""The network that ships with the package: a narrow VGG-16, trained on CIFAR-10 by ``experiments/demo_network.py``."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import nn

from slimilar.models.checkpoints import half_precision, load_state, single_precision
from slimilar.models.vgg import VGG
from slimilar.utils.atomic import write_bytes

WIDTH = 0.375


def demo_network() -> nn.Module:
    """Return the trained network, in evaluation mode; ``slimilar.data.demo_images()`` fit it."""
    content = (files("slimilar.data") / "demo_assets" / "network.safetensors").read_bytes()
    return load_state(VGG(classes=10, width=WIDTH), single_precision(load(content))).eval()


def demo_record() -> dict[str, Any]:
    """Return how the demo network was made, and how good it is: command, seed, versions, accuracy."""
    record: dict[str, Any] = json.loads(
        (files("slimilar.data") / "demo_assets" / "network.json").read_text(encoding="utf-8")
    )
    return record


def write_demo_network(folder: Path, model: nn.Module) -> None:
    """Write weights with kernels in half precision: half the size."""
    write_bytes(folder / "network.safetensors", save(half_precision(model)))
