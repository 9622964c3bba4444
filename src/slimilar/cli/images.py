"""Images that the user names: a dataset, a folder, a file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slimilar.cli.labels import check_labels, described_classes
from slimilar.cli.model_source import OpenedModel, channels_last
from slimilar.cli.output import Output, escape
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.several_inputs import several_inputs
from slimilar.errors import DataError, InvalidInput
from slimilar.utils.wording import listed

if TYPE_CHECKING:
    from torch import Tensor

    from slimilar.data import ImageFiles, Images, Normalisation, Preprocessing
    from slimilar.data.source import ImageSource

_ARRAYS = {"x_train": "y_train", "images": "labels", "x": "y", "pictures": "labels", "arr_0": "arr_1"}
MOST_UNLABELLED = 5_000  # without labels, all images are held in memory
FEW = 128  # calibration images: fewer fit the reconstruction badly


@dataclass(frozen=True, eq=False)
class CalibrationImages:
    """Images for calibration, ready for the network, their labels (-1: not known), and how they were prepared."""

    images: Any  # a tensor; for a model with several inputs, a tuple of them
    labels: Tensor
    preprocessing: Preprocessing | None

    def as_argument(self, labels: bool) -> Any:
        """Return them as `slimilar.analyze` takes them: with labels, as one batch."""
        return [(self.images, self.labels)] if labels else self.images

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageReader:
    """Reads images as a model expects them, and says what is done to them."""

    out: Output
    opened: OpenedModel
    options: PreprocessingOptions
    # Whether the model learns its classes from the folders: these may be fewer than its outputs.
    learns: bool = False

    def labelled(
        self, what: str, split: Literal["train", "test"], limit: int | None = None
    ) -> Images | ImageFiles:
        """Return images with labels that fit the model; files that cannot be read are left out and listed."""
        return self._dataset(what, split, limit, labels=True)

    def _dataset(
        self, what: str, split: Literal["train", "test"], limit: int | None, labels: bool
    ) -> Images | ImageFiles:
        """Return images of a dataset, taken evenly; if their labels are used, they have to fit the model."""
        import torch

        from slimilar.data import ImageFiles, dataset
        from slimilar.utils.sampling import evenly

        found = dataset(what, split)
        if labels:
            check_labels(what, found, self.opened, self.learns)
        found = found if limit is None else found.at(torch.from_numpy(evenly(len(found), limit)))
        if isinstance(found, ImageFiles):
            found = self._readable(found.prepared(self._preprocessing()))
        else:
            found = found.normalised(self._normalisation(found.normalisation))
        classes = escape(described_classes(found))
        self.out.note(f"{split} images: {len(found)} of {escape(what)}{classes}; {self._how(found)}")
        return found

    def calibration(self, what: str, limit: int, labels: bool = False) -> CalibrationImages:
        """Return images for calibration: of a folder, a .npz file or a dataset."""
        found = self._images(what, limit, labels)
        self._say_count(what, len(found))
        return found

    def unlabelled(self, what: str, limit: int | None = None) -> CalibrationImages:
        """Return images to learn from a teacher; all of them are held in memory."""
        found = self._images(what, limit or MOST_UNLABELLED)
        count = len(found)
        more = "; --limit takes more" if limit is None and count == MOST_UNLABELLED else ""
        self.out.note(f"training images: {count} of {escape(what)}, without labels{more}")
        return found

    def _images(self, what: str, limit: int, labels: bool = False) -> CalibrationImages:
        path = Path(what).expanduser()
        if len(self.opened.shapes) > 1:
            return self._several(path, limit, labels)
        if path.is_dir():
            found = self._folder(path, limit, labels)
        elif path.suffix == ".npz" and not path.stem.startswith("cifar"):
            found = self._arrays(path, limit, labels)
        else:
            found = self._all(self._dataset(what, "train", limit, labels))
        return replace(found, images=fitted(found.images, self.opened))

    def _several(self, path: Path, limit: int, labels: bool) -> CalibrationImages:
        import torch

        if labels:
            raise InvalidInput(
                "on the command line, criteria that need labels only support models with one input; in Python, pass "
                "batches of (inputs, labels)"
            )
        inputs = several_inputs(path, self.opened, limit)
        return CalibrationImages(inputs, torch.full((len(inputs[0]),), -1), self.preprocessing())

    def preprocessing(self, images: Images | ImageFiles | None = None) -> Preprocessing | None:
        """Return the preprocessing to save with a model that was shown some images; None where it is not known."""
        from slimilar.data import ImageFiles

        if isinstance(images, ImageFiles):
            return images.preprocessing
        if images is not None:
            return replace(self._preprocessing(), normalisation=images.normalisation)
        asked = self.options != PreprocessingOptions() or self.opened.preprocessing is not None
        return self._preprocessing() if asked else None

    def _preprocessing(self) -> Preprocessing:
        return self.options.preprocessing(self.opened)

    def _normalisation(self, own: Normalisation) -> Normalisation:
        """Return the normalisation that was asked for, or that the model is known to expect, or the dataset's own."""
        known = self.opened.preprocessing
        return self.options.normalisation() or (own if known is None else known.normalisation)

    def _how(self, found: Images | ImageFiles) -> str:
        from slimilar.data import ImageFiles

        if isinstance(found, ImageFiles):
            return found.preprocessing.described() + self._guess()
        tall, wide = found.images.shape[1:3]
        return f"{tall}x{wide}: {_normalised(found.normalisation)}"

    def _guess(self) -> str:
        """Return a remark where nothing is known of what a model was trained on."""
        if self.options.normalisation() is not None or self.opened.preprocessing is not None:
            return ""
        return ", a guess: --mean and --std take those of your training"

    def _readable(self, found: ImageFiles) -> ImageFiles:
        with self.out.working("Checking the image files"):
            sound, broken = found.readable()
        if broken:
            names = listed([str(file) for file in broken], most=5)
            self.out.note(
                f"{len(broken)} of {len(found)} image files cannot be read and are skipped: {escape(names)}"
            )
        if not len(sound):
            raise DataError(
                f"at least one image file must be readable, but none of {len(found)} is: {broken[0]}, ..."
            )
        return sound

    def _folder(self, path: Path, limit: int, labels: bool) -> CalibrationImages:
        """Return images of a folder, taken evenly; of a dataset's folder, those to train on."""
        import torch

        from slimilar.data import image_folder
        from slimilar.data.folder import unlabelled_files
        from slimilar.utils.sampling import evenly

        place = path / "train" if (path / "train").is_dir() else path
        found = image_folder(place) if labels else unlabelled_files(place, limit)
        if labels:
            check_labels(str(place), found, self.opened)
            found = found.at(torch.from_numpy(evenly(len(found), limit)))
        found = self._readable(found.prepared(self._preprocessing()))
        self.out.note(f"calibration images: {self._how(found)}")
        return self._all(found)

    def _arrays(self, path: Path, limit: int, labels: bool) -> CalibrationImages:
        """Return the images of any .npz file: bytes (N, H, W, C), or floats that are ready for the network."""
        import numpy as np
        import torch

        from slimilar.data.images import RAW

        try:
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                found, known = _some_arrays(path, arrays, limit, labels)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            if isinstance(error, InvalidInput):
                raise
            raise DataError(f"{path} must be a complete .npz file without pickles, but: {error}") from error
        if found.dtype != np.uint8:
            return CalibrationImages(
                torch.from_numpy(found).float(), torch.from_numpy(known), self.preprocessing()
            )
        how = replace(self._preprocessing(), normalisation=self._normalisation(RAW))
        self.out.note(f"calibration images: {_normalised(how.normalisation)}")
        images = how.normalisation.apply(torch.from_numpy(found)).contiguous()
        return CalibrationImages(images, torch.from_numpy(known), how)

    def _all(self, dataset: Images | ImageFiles) -> CalibrationImages:
        import torch

        images, labels = dataset.batch(torch.arange(len(dataset)))
        return CalibrationImages(images.contiguous(), labels, self.preprocessing(dataset))

    def _say_count(self, what: str, count: int) -> None:
        few = f"; pass {FEW} or more to keep more accuracy" if count < FEW else ""
        self.out.note(f"calibrating on {count} image{'s' * (count != 1)} of {escape(what)}{few}")


def _normalised(how: Normalisation) -> str:
    mean, std = (" ".join(f"{n:.4g}" for n in row) for row in (how.mean, how.std))
    return f"normalised with mean {mean}, std {std}"


def laid_out(images: ImageSource, opened: OpenedModel) -> ImageSource:
    """Return images with the axes in the order that a model takes them in."""
    from slimilar.data.source import ChannelsLastSource

    return ChannelsLastSource(images) if channels_last(opened.shapes[0]) else images


def fitted(images: Tensor, opened: OpenedModel) -> Tensor:
    """Return RGB images in the layout, size and number of channels that a model takes."""
    from torch.nn.functional import interpolate

    shape = opened.shapes[0]
    if len(shape) != 3 or images.ndim != 4 or tuple(images.shape[1:]) == shape:
        return images
    last = channels_last(shape)
    channels, *size = (shape[2], *shape[:2]) if last else shape
    if channels == 1 and images.shape[1] != 1:
        images = images.mean(1, keepdim=True)
    if list(images.shape[2:]) != size:
        images = interpolate(images, size, mode="bilinear", antialias=True)
    return images.permute(0, 2, 3, 1).contiguous() if last else images


def _some_arrays(path: Path, arrays: Any, limit: int, labels: bool) -> tuple[Any, Any]:
    """Return images of a file, taken evenly, and their labels: -1 where these are not asked for."""
    import numpy as np

    from slimilar.utils.sampling import taken_evenly

    name = next((n for n in _ARRAYS if n in arrays), None)
    if name is None:
        raise InvalidInput(f"{path} must hold an array named {' or '.join(_ARRAYS)}, but holds none")
    found = taken_evenly(arrays[name], limit)
    if not labels:
        return found, np.full(len(found), -1)
    beside = _ARRAYS[name]
    if beside not in arrays:
        raise InvalidInput(f"{path} must hold labels named {beside} beside its {name}, but holds none")
    known = taken_evenly(arrays[beside], limit)
    if known.shape != found.shape[:1] or known.dtype.kind not in "iu":
        raise InvalidInput(
            f"{path} must hold a whole number in {beside} for each image of {name}, but holds {known.dtype} of shape "
            f"{known.shape} for {len(found)} images"
        )
    return found, known.astype(np.int64)
