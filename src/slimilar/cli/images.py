"""Images that the user names: a dataset, a folder, a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slimilar.cli.model_source import OpenedModel
from slimilar.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from slimilar.data import ImageFiles, Images, Normalisation

NORMALISATIONS = ("auto", "raw", "imagenet", "cifar10", "cifar100")
_ARRAYS = {"x_train": "y_train", "images": "labels", "x": "y", "pictures": "labels", "arr_0": "arr_1"}


def normalisation(name: str, opened: OpenedModel) -> Normalisation | None:
    """Return what the user asked for, or what the model is known to expect; None for the dataset's own."""
    from slimilar.data.cifar import NORMALISATIONS as CIFAR
    from slimilar.data.folder import IMAGENET
    from slimilar.data.images import RAW
    from slimilar.utils.suggestions import choose

    chosen = choose(name, NORMALISATIONS, "normalise")
    return opened.normalisation if chosen == "auto" else {"raw": RAW, "imagenet": IMAGENET, **CIFAR}[chosen]


def labelled(
    opened: OpenedModel, what: str, split: Literal["train", "test"], limit: int | None, normalise: str
) -> Images | ImageFiles:
    """Return images with labels, as a model expects them."""
    from slimilar.data import dataset

    size = _loaded_size(opened)
    found = dataset(what, split, size=size, normalisation=normalisation(normalise, opened))
    return found if limit is None else found.first(limit)


def calibration(
    opened: OpenedModel, what: str | None, limit: int, normalise: str, labels: bool = False
) -> Any:
    """Return images for calibration: of a folder, a .npz file, a dataset; or "synthesize".

    With `labels` it is one batch of (images, labels), as `slimilar.pipeline` takes it.
    """
    if what is None or what == "synthesize":
        return what
    path = Path(what).expanduser()
    if path.is_dir():
        found = _folder(path, opened, limit, normalise, labels)
    elif path.suffix == ".npz" and not path.stem.startswith("cifar"):
        found = _arrays(path, opened, limit, normalise, labels)
    else:
        found = _all(labelled(opened, what, "train", limit, normalise))
    found = fitted(found[0], opened), found[1]
    return [found] if labels else found[0]


def _loaded_size(opened: OpenedModel) -> int:
    """Return the side of the square that images are read at."""
    shape = opened.shapes[0]
    if len(shape) != 3:
        raise InvalidInput(f"images must be 3 numbers, such as 3x224x224, but the model takes {shape}")
    return max(shape[:2] if _channels_last(shape) else shape[1:])


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether a model takes its channels last, as those from TensorFlow do."""
    return len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3)


def fitted(images: Tensor, opened: OpenedModel) -> Tensor:
    """Return square RGB images in the layout, size and number of channels that a model takes."""
    from torch.nn.functional import interpolate

    shape = opened.shapes[0]
    if len(shape) != 3 or images.ndim != 4 or tuple(images.shape[1:]) == shape:
        return images
    last = _channels_last(shape)
    channels, *size = (shape[2], *shape[:2]) if last else shape
    if channels == 1:
        images = images.mean(1, keepdim=True)
    if list(images.shape[2:]) != size:
        images = interpolate(images, size, mode="bilinear", antialias=True)
    return images.permute(0, 2, 3, 1).contiguous() if last else images


def _all(dataset: Images | ImageFiles) -> tuple[Tensor, Tensor]:
    import torch

    images, labels = dataset.batch(torch.arange(len(dataset)))
    return images.contiguous(), labels


def _folder(
    path: Path, opened: OpenedModel, limit: int, normalise: str, labels: bool
) -> tuple[Tensor, Tensor]:
    """Return images of a folder, taken evenly; of a dataset's folder, those to train on."""
    import torch

    from slimilar.data import image_folder, unlabelled

    wanted = normalisation(normalise, opened)
    options: dict[str, Any] = {"size": _loaded_size(opened)}
    options |= {} if wanted is None else {"normalisation": wanted}
    place = path / "train" if (path / "train").is_dir() else path
    if not labels:
        return _all(unlabelled(place, limit=limit, **options))
    found = image_folder(place, **options)
    _check_classes(place, found, opened)
    chosen = torch.linspace(0, len(found) - 1, min(limit, len(found))).round().long()
    images, known = found.batch(chosen)
    return images.contiguous(), known


def _check_classes(place: Path, found: ImageFiles, opened: OpenedModel) -> None:
    """Refuse folders that are not the model's classes: folders by date would be taken for labels."""
    import torch

    with torch.no_grad():
        scores = opened.model(opened.example())
    if isinstance(scores, torch.Tensor) and scores.ndim == 2 and scores.shape[1] != len(found.class_names):
        raise DataError(
            f"{place} must hold one folder for each of the {scores.shape[1]} classes that the model distinguishes, "
            f"but holds {len(found.class_names)}; name a folder with these classes"
        )


def _arrays(
    path: Path, opened: OpenedModel, limit: int, normalise: str, labels: bool
) -> tuple[Tensor, Tensor]:
    """Return the images of any .npz file: bytes (N, H, W, C), or floats that are ready for the network."""
    import numpy as np
    import torch

    from slimilar.data.images import RAW

    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found, known = _first_arrays(path, arrays, limit, labels)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"{path} must be a whole .npz file without pickles, but: {error}") from error
    if found.dtype == np.uint8:
        images = (normalisation(normalise, opened) or RAW).apply(torch.from_numpy(found)).contiguous()
    else:
        images = torch.from_numpy(found).float()
    return images, torch.from_numpy(known)


def _first_arrays(path: Path, arrays: Any, limit: int, labels: bool) -> tuple[Any, Any]:
    """Return the first images of a file, and their labels: -1 where these are not asked for."""
    import numpy as np

    name = next((n for n in _ARRAYS if n in arrays), None)
    if name is None:
        raise InvalidInput(f"{path} must hold an array named {' or '.join(_ARRAYS)}, but holds none")
    found = np.ascontiguousarray(arrays[name][:limit])
    if not labels:
        return found, np.full(len(found), -1)
    beside = _ARRAYS[name]
    if beside not in arrays:
        raise InvalidInput(f"{path} must hold labels named {beside} beside its {name}, but holds none")
    known = np.ascontiguousarray(arrays[beside][:limit])
    if known.shape != found.shape[:1] or known.dtype.kind not in "iu":
        raise InvalidInput(
            f"{path} must hold a whole number in {beside} for each image of {name}, but holds {known.dtype} of shape "
            f"{known.shape} for {len(found)} images"
        )
    return found, known.astype(np.int64)
