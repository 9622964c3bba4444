"""Folders of images: one folder per class (as ImageNet), or unlabelled ones for calibration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slimilar.data.images import Images, Normalisation
from slimilar.data.preprocessing import IMAGENET, Preprocessing
from slimilar.errors import DataError
from slimilar.utils.sampling import evenly

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files with labels, read when they are needed; made by ``image_folder``.

    Without augmentation they are prepared as ``preprocessing`` says. With it a random part is scaled to the input's
    size: 8 to 100 % of the area, 3:4 to 4:3, half of them flipped horizontally.
    """

    files: tuple[Path, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    preprocessing: Preprocessing = Preprocessing.of(224, normalisation=IMAGENET)  # noqa: RUF009 (frozen)
    workers: int = 0

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows: Sequence[list[float] | None] = [None] * len(indices) if draws is None else draws.tolist()
        files = [self.files[i] for i in indices.tolist()]
        pixels = [_read(file, self.preprocessing, row) for file, row in zip(files, rows, strict=True)]
        return self.normalisation.apply(torch.from_numpy(np.stack(pixels))), self.labels[indices]

    @property
    def size(self) -> int:
        """Height of the input, in pixels."""
        return self.preprocessing.size[0]

    @property
    def normalisation(self) -> Normalisation:
        """How pixels are normalised."""
        return self.preprocessing.normalisation

    def normalised(self, normalisation: Normalisation) -> ImageFiles:
        """Return the same images for a network that expects another normalisation."""
        return replace(self, preprocessing=replace(self.preprocessing, normalisation=normalisation))

    def prepared(self, how: Preprocessing) -> ImageFiles:
        """Return the same images, prepared in another way."""
        return replace(self, preprocessing=how)

    def readable(self) -> tuple[ImageFiles, tuple[Path, ...]]:
        """Return the images that can be read, and the files that cannot: each is decoded, JPEG at an eighth."""
        with ThreadPoolExecutor(_default_workers()) as pool:
            sound = list(pool.map(_is_readable, self.files))
        broken = tuple(file for file, good in zip(self.files, sound, strict=True) if not good)
        files = tuple(file for file, good in zip(self.files, sound, strict=True) if good)
        return (
            self if not broken else replace(self, files=files, labels=self.labels[torch.tensor(sound)])
        ), broken

    def first(self, count: int) -> ImageFiles:
        """Return the first ``count`` images."""
        return replace(self, files=self.files[:count], labels=self.labels[:count])

    def at(self, places: Tensor) -> ImageFiles:
        """Return the images at some places."""
        return replace(self, files=tuple(self.files[i] for i in places.tolist()), labels=self.labels[places])


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
            raise DataError(
                f"{root / name} must hold images, but holds none; add images or remove the folder"
            )
    labels = torch.arange(len(names)).repeat_interleave(torch.tensor([len(found) for found in files]))
    return ImageFiles(
        tuple(file for found in files for file in found), labels, tuple(names),
        Preprocessing.of(size, resize, normalisation=normalisation, always=resize is not None),
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
    found = unlabelled_files(path, limit)
    how = Preprocessing.of(size, resize, normalisation=normalisation, always=resize is not None)
    pixels = np.stack([_read(file, how, None) for file in found.files])
    return Images(torch.from_numpy(pixels), found.labels, normalisation)


def unlabelled_files(path: str | Path, limit: int | None = None) -> ImageFiles:
    """Return up to ``limit`` images of a folder, and of those inside it, taken evenly; labels are -1."""
    root = _existing(path)
    files = _images_below(root)
    if not files:
        raise DataError(
            f"{root} must hold images ({', '.join(sorted(SUFFIXES))}), but holds none; check the path"
        )
    chosen = tuple(files if limit is None else [files[i] for i in evenly(len(files), limit)])
    return ImageFiles(chosen, torch.full((len(chosen),), -1), ())


def _existing(path: str | Path) -> Path:
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} must be a folder, but there is no such folder; check the path")
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


def _read(file: Path, how: Preprocessing, draws: list[float] | None) -> np.ndarray:
    try:
        with Image.open(file) as opened:
            image = how.prepared(opened) if draws is None else _random_part(how.upright(opened), how, draws)
        pixels = np.asarray(image)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels
    except _UNREADABLE as error:
        raise DataError(
            f"{file} must be a complete image, but reading it failed ({error}); replace or remove it"
        ) from error


def _is_readable(file: Path) -> bool:
    try:
        with Image.open(file) as opened:
            opened.draft("RGB", (1, 1))  # the smallest scale a JPEG decoder offers; others decode all
            opened.load()
    except _UNREADABLE:
        return False
    return True


def _random_part(image: Image.Image, how: Preprocessing, draws: list[float]) -> Image.Image:
    width, height = image.size
    area = width * height * (0.08 + 0.92 * draws[0])
    ratio = (3 / 4) ** (1 - 2 * draws[1])  # from 3:4 to 4:3, even on a log scale
    wide, tall = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
    left, top = draws[2] * (width - wide), draws[3] * (height - tall)
    box = (left, top, left + wide, top + tall)
    part = image.resize(how.size[::-1], how.filter, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[4] < 0.5 else part
