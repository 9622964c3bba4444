"""A dataset by its name or its path, as on the command line."""

from __future__ import annotations

from pathlib import Path

from slimilar.data.cifar import CLASSES, cifar
from slimilar.data.demo import demo_images
from slimilar.data.folder import ImageFiles, image_folder
from slimilar.data.images import Images, Normalisation
from slimilar.data.npz import Split, labelled_arrays
from slimilar.errors import DataError
from slimilar.utils.dataset_names import check_dataset

FOLDERS = {"train": ("train",), "test": ("test", "val", "validation")}


def dataset(
    what: str | Path,
    split: Split = "train",
    *,
    size: int = 224,
    normalisation: Normalisation | None = None,
    download: bool = False,
) -> Images | ImageFiles:
    """Return a split of the dataset that ``what`` names.

    ``"demo"``: the shipped images. ``"cifar10"`` or ``"cifar100"``: found by the environment variable
    SLIMILAR_DATA. A path to ``cifar10.npz`` or ``cifar100.npz``. Any other ``.npz`` file with the arrays x_train,
    y_train, x_test and y_test: images as bytes (N, height, width, channels), labels as whole numbers. A folder with
    ``train`` and ``test`` (or ``val``) inside, each with one folder of images for each class; ``size`` is the side of
    its images.

    >>> dataset("demo", "test").class_names[0]
    'airplane'
    """
    path, name = check_dataset(what), str(what)
    if name == "demo":
        found: Images | ImageFiles = demo_images(split)
    elif path is None:
        found = cifar(name, split, download=download)
    elif path.suffix == ".npz" and path.stem.startswith("cifar"):
        found = cifar(path.stem if path.stem in CLASSES else "cifar10", split, path)
    elif path.suffix == ".npz":
        found = labelled_arrays(path, split)
    else:
        found = _folder(path, split, size)
    return found if normalisation is None else found.normalised(normalisation)


def _hint(path: Path) -> str:
    """Return what to do about a folder without splits: users name the split itself."""
    known = {name for names in FOLDERS.values() for name in names}
    return f"name the folder that holds {path.name}: {path.parent}" if path.name in known else "add it"


def _folder(path: Path, split: Split, size: int) -> ImageFiles:
    inside = [path / name for name in FOLDERS[split] if (path / name).is_dir()]
    if not inside:
        raise DataError(
            f"{path} must hold a folder named {' or '.join(FOLDERS[split])}, but holds none; {_hint(path)}"
        )
    training = path / "train"
    classes = image_folder(training).class_names if split == "test" and training.is_dir() else None
    return image_folder(inside[0], classes=classes, size=size)
