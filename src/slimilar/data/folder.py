"""Folders of images: one folder per class (as ImageNet), or unlabelled ones for calibration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slimilar.data.images import Images, Normalisation
from slimilar.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files with labels, read when they are needed; made by ``image_folder``.

    Without augmentation the shorter side becomes ``resize`` pixels, and the middle of ``size`` is kept.
    With it a random part is scaled to that size: 8 to 100 % of the area, 3:4 to 4:3, half of them flipped horizontally.
    """

    files: tuple[Path, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    size: int = 224
    resize: int = 256
    normalisation: Normalisation = IMAGENET
    workers: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows: Sequence[list[float] | None] = [None] * len(indices) if draws is None else draws.tolist()
        files = [self.files[i] for i in indices.tolist()]
        pixels = [_read(file, self.size, self.resize, row) for file, row in zip(files, rows, strict=True)]
        return self.normalisation.apply(torch.from_numpy(np.stack(pixels))), self.labels[indices]

    def normalised(self, normalisation: Normalisation) -> ImageFiles:
        """Return the same images for a network that expects another normalisation."""
        return replace(self, normalisation=normalisation)

    def first(self, count: int) -> ImageFiles:
        """Return the first ``count`` images."""
        return replace(self, files=self.files[:count], labels=self.labels[:count])


def image_folder(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    size: int = 224,
    resize: int | None = None,
    normalisation: Normalisation = IMAGENET,
    workers: int | None = None,
) -> ImageFiles:
    """Read a folder that holds one folder of images for each class; their sorted names number the labels.

    Pass the training set's ``class_names`` as ``classes`` for a test set: a class folder that is missing
    there would otherwise shift all labels behind it, and nobody would notice.
    """
    root = _existing(path)
    names = sorted(
        entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise DataError(f"{root} must hold one folder for each class, but holds none; check the path")
    _compare(root, names, names if classes is None else classes)
    files = [_images_below(root / name) for name in names]
    for name, found in zip(names, files, strict=True):
        if not found:
            raise DataError(f"{root / name} must hold images, but holds none; fill it or remove the class")
    labels = torch.arange(len(names)).repeat_interleave(torch.tensor([len(found) for found in files]))
    return ImageFiles(
        tuple(file for found in files for file in found), labels, tuple(names), size,
        round(size * 256 / 224) if resize is None else resize, normalisation,
        _default_workers() if workers is None else workers,
    )  # fmt: skip


def unlabelled(
    path: str | Path,
    *,
    size: int = 224,
    resize: int | None = None,
    limit: int = 256,
    normalisation: Normalisation = IMAGENET,
) -> Images:
    """Read up to ``limit`` images of a folder, and of those inside it, into memory: calibration data.

    They are taken evenly over the sorted names, so that folders by class or by date are all represented.
    Labels are -1.
    """
    root = _existing(path)
    files = _images_below(root)
    if not files:
        raise DataError(
            f"{root} must hold images ({', '.join(sorted(SUFFIXES))}), but holds none; check the path"
        )
    chosen = [files[i] for i in np.linspace(0, len(files) - 1, min(limit, len(files))).round().astype(int)]
    shorter = round(size * 256 / 224) if resize is None else resize
    pixels = np.stack([_read(file, size, shorter, None) for file in chosen])
    return Images(torch.from_numpy(pixels), torch.full((len(chosen),), -1), normalisation)


def _existing(path: str | Path) -> Path:
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} must be a folder, but there is none; check the path")
    return root


def _compare(root: Path, found: Iterable[str], wanted: Sequence[str]) -> None:
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        what = f"{missing[0]!r} is missing" if missing else f"{extra[0]!r} is not one of them"
        raise DataError(
            f"{root} must hold the same {len(wanted)} class folders as the training set, but {what} "
            f"({len(missing)} missing, {len(extra)} unknown); add or remove folders"
        )


def _images_below(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))


def _default_workers() -> int:
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _read(file: Path, size: int, resize: int, draws: list[float] | None) -> np.ndarray:
    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        image = _middle(image, size, resize) if draws is None else _random_part(image, size, draws)
        return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} must be a whole image, but reading it failed ({error}); replace or remove it"
        ) from error


def _middle(image: Image.Image, size: int, resize: int) -> Image.Image:
    width, height = image.size
    scale = resize / min(width, height)
    wide, tall = max(size, int(width * scale)), max(size, int(height * scale))
    left, top = round((wide - size) / 2), round((tall - size) / 2)
    scaled = image.resize((wide, tall), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def _random_part(image: Image.Image, size: int, draws: list[float]) -> Image.Image:
    width, height = image.size
    area = width * height * (0.08 + 0.92 * draws[0])
    ratio = (3 / 4) ** (1 - 2 * draws[1])  # from 3:4 to 4:3, even on a log scale
    wide, tall = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
    left, top = draws[2] * (width - wide), draws[3] * (height - tall)
    box = (left, top, left + wide, top + tall)
    part = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[4] < 0.5 else part
