"""Pictures that the user names: a dataset, a folder, a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slimilar.cli.opened import Opened
from slimilar.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from slimilar.data import Normalisation, PictureFiles, Pictures

NORMALISATIONS = ("auto", "raw", "imagenet", "cifar10", "cifar100")
_ARRAYS = ("x_train", "images", "x", "pictures", "arr_0")


def normalisation(name: str, opened: Opened) -> Normalisation | None:
    """Return what the user asked for, or what the model is known to expect; None for the dataset's own."""
    from slimilar.data.cifar import NORMALISATIONS as CIFAR
    from slimilar.data.folder import IMAGENET
    from slimilar.data.pictures import RAW
    from slimilar.names import choose

    chosen = choose(name, NORMALISATIONS, "normalise")
    return opened.normalisation if chosen == "auto" else {"raw": RAW, "imagenet": IMAGENET, **CIFAR}[chosen]


def labelled(
    opened: Opened, what: str, split: Literal["train", "test"], limit: int | None, normalise: str
) -> Pictures | PictureFiles:
    """Return pictures with labels, as a model expects them."""
    from slimilar.data import dataset

    size = opened.shapes[0][-1]
    found = dataset(what, split, size=size, normalisation=normalisation(normalise, opened))
    return found if limit is None else found.first(limit)


def calibration(opened: Opened, what: str | None, limit: int, normalise: str) -> Tensor | str | None:
    """Return unlabelled pictures for calibration: of a folder, a .npz file, a dataset; or the word "synthesize"."""
    if what is None or what == "synthesize":
        return what
    path, size = Path(what).expanduser(), opened.shapes[0][-1]
    if path.is_dir():
        from slimilar.data import unlabelled

        wanted = normalisation(normalise, opened)
        options: dict[str, Any] = {} if wanted is None else {"normalisation": wanted}
        return unlabelled(path, size=size, limit=limit, **options).tensor()
    if path.suffix == ".npz" and not path.stem.startswith("cifar"):
        return _arrays(path, opened, limit, normalise)
    pictures = labelled(opened, what, "train", limit, normalise)
    import torch

    return pictures.batch(torch.arange(len(pictures)))[0].contiguous()


def _arrays(path: Path, opened: Opened, limit: int, normalise: str) -> Tensor:
    """Return the pictures of any .npz file: bytes (N, H, W, C), or floats that are ready for the network."""
    import numpy as np
    import torch

    from slimilar.data.pictures import RAW

    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            name = next((n for n in _ARRAYS if n in arrays), None)
            if name is None:
                raise InvalidInput(f"{path} must hold an array named {' or '.join(_ARRAYS)}, but holds none")
            found = np.ascontiguousarray(arrays[name][:limit])
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"{path} must be a whole .npz file without pickles, but: {error}") from error
    if found.dtype == np.uint8:
        return (normalisation(normalise, opened) or RAW).apply(torch.from_numpy(found)).contiguous()
    return torch.from_numpy(found).float()
