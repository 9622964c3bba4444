"""Images and labels in ``.npz`` files: x_train, y_train, x_test, y_test, and names of the classes if wanted."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from slimilar.data.images import Images
from slimilar.errors import DataError

Split = Literal["train", "test"]


def labelled_arrays(file: Path, split: Split) -> Images:
    """Return a split of a file: images as bytes (N, height, width, channels), labels as whole numbers from 0."""
    images, labels, names = read_split(file, split)
    known = np.asarray(labels)
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        got = f"{images.dtype} of shape {images.shape}"
        raise DataError(f"x_{split} in {file} must be uint8 of shape (N, height, width, channels), got {got}")
    if known.dtype.kind not in "iu" or known.shape != images.shape[:1] or (known.size and known.min() < 0):
        got = f"{known.dtype} of shape {known.shape}"
        raise DataError(
            f"y_{split} in {file} must hold one whole number from 0 for each of the {len(images)} images, got {got}"
        )
    pixels = images[..., None] if images.ndim == 3 else images
    return Images(
        torch.from_numpy(np.ascontiguousarray(pixels)),
        torch.from_numpy(known.astype(np.int64)),
        class_names=names,
    )


def read_split(file: Path, split: Split) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the images, the labels and the names of the classes, if there are any, of a split."""
    try:
        # Opened here, because numpy leaves a broken file open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            names = tuple(map(str, arrays["classes"])) if "classes" in arrays else ()
            return arrays[f"x_{split}"], arrays[f"y_{split}"], names
    except FileNotFoundError:
        raise DataError(f"{file} must be a .npz file, but there is no such file; check the path") from None
    except KeyError as error:
        raise DataError(
            f"{file} must hold x_{split} and y_{split}, but {error}; create the file again"
        ) from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file} must be a complete .npz file without pickles, but reading it failed: {error}"
        ) from None
