"""Small real images and a small network, for tests that train."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from slimilar.data import Images, Normalisation


def digits(start: int = 0, stop: int = 1797) -> Images:
    """Return handwritten digits, 8 x 8 pixels, 1,797 in all."""
    bunch = load_digits()
    images = (bunch.images[start:stop, :, :, None] * 15.9).astype(np.uint8)
    labels = torch.from_numpy(bunch.target[start:stop].astype(np.int64))
    mean_and_std = Normalisation((0.3,), (0.37,))
    return Images(torch.from_numpy(images), labels, mean_and_std, padding=1, flip=False)


def network(dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, 10),
    )


def fingerprint(model: nn.Module) -> str:
    """Return a hash of every bit of a network's state."""
    parts = [f"{name}".encode() + t.contiguous().numpy().tobytes() for name, t in model.state_dict().items()]
    return hashlib.sha256(b"".join(parts)).hexdigest()
