"""CIFAR-10 and CIFAR-100: from a local ``.npz``, or by torchvision's downloader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slimilar.data.images import Images, Normalisation
from slimilar.data.npz import Split, read_split
from slimilar.errors import DataError, InvalidInput
from slimilar.utils.torchvision_compat import import_torchvision

NORMALISATIONS = {
    "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
CLASSES = {"cifar10": 10, "cifar100": 100}
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def cifar(
    name: str = "cifar10", split: Split = "train", path: str | Path | None = None, *, download: bool = False
) -> Images:
    """Return a split of ``"cifar10"`` or ``"cifar100"``.

    ``path`` is a ``.npz`` with x_train, y_train, x_test, y_test, or a folder that holds ``<name>.npz`` or
    torchvision's files; without it the environment variable SLIMILAR_DATA names the folder. With ``download``
    torchvision fetches into that folder what is missing.
    """
    if name not in CLASSES:
        raise InvalidInput(f"name must be one of {', '.join(CLASSES)}, got {name!r}")
    if split not in ("train", "test"):
        raise InvalidInput(f"split must be 'train' or 'test', got {split!r}")
    place = _place(name, path)
    file = place if place.suffix == ".npz" else place / f"{name}.npz"
    if file.is_file() or place.suffix == ".npz":
        images, labels, names = read_split(file, split)
    else:
        images, labels, names = _from_torchvision(name, split, place, download)
    return _checked(name, file, images, labels, names)


def _place(name: str, path: str | Path | None) -> Path:
    chosen = path if path is not None else os.environ.get("SLIMILAR_DATA")
    if not chosen:
        raise DataError(
            f"{name} was not found: pass a .npz file or a folder, "
            "or set the environment variable SLIMILAR_DATA to the folder that holds it"
        )
    return Path(chosen).expanduser()


def _from_torchvision(
    name: str, split: Split, root: Path, download: bool
) -> tuple[Any, Any, tuple[str, ...]]:
    datasets = import_torchvision("torchvision.datasets")
    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    try:
        dataset = kind(str(root), train=split == "train", download=download)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{root} must hold {name}.npz or torchvision's {name} files, but: {error}; "
            "check the path, or download them"
        ) from None
    return dataset.data, dataset.targets, tuple(dataset.classes)


def _checked(name: str, file: Path, images: Any, labels: Any, names: tuple[str, ...]) -> Images:
    labels = torch.as_tensor(np.asarray(labels, dtype=np.int64))
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES[name]:
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"labels in {file} must lie in 0 to {CLASSES[name] - 1}, got {got}; is it {name}?")
    if name == "cifar10" and not names:
        names = CIFAR10_CLASSES
    return Images(torch.from_numpy(np.ascontiguousarray(images)), labels, NORMALISATIONS[name], names)
