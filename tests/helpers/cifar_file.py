"""A small file in the form of CIFAR's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_npz(path: Path, labels: int = 10, **more: Any) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    answers = (np.arange(20) % labels).astype(np.uint8)
    np.savez(path, x_train=images, y_train=answers, x_test=images[:5], y_test=answers[:5], **more)
    return images
