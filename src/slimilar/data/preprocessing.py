"""How an image file becomes the input of a network: scaling, cropping, normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from PIL import Image, ImageOps

from slimilar.data.images import RAW, Normalisation
from slimilar.errors import DataError, InvalidInput

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_RESIZED = 256 / 224  # of the input's size: the usual evaluation on ImageNet


@dataclass(frozen=True)
class Preprocessing:
    """What is done to an image before a network takes it.

    The image is rotated as its EXIF data say. One that has the input's size already is taken as it is, unless
    ``always``. Of any other the shorter side becomes ``resize`` pixels (or the whole image that height and width),
    the middle of ``crop`` is kept, and scaled to ``size`` where it differs.

    >>> Preprocessing.of(32).described()
    '32x32: the shorter side scaled to 37, centre crop; 32x32 images as they are; normalised with mean 0, std 1'
    """

    size: tuple[int, int]  # height and width of the network's input
    resize: int | tuple[int, int]
    crop: tuple[int, int]
    normalisation: Normalisation = RAW
    interpolation: Interpolation = "bilinear"
    always: bool = False
    grey: bool = False  # one channel in place of three

    @classmethod
    def of(
        cls,
        size: int | tuple[int, int],
        resize: int | tuple[int, int] | None = None,
        crop: int | tuple[int, int] | None = None,
        normalisation: Normalisation = RAW,
        interpolation: Interpolation = "bilinear",
        always: bool = False,
        grey: bool = False,
    ) -> Preprocessing:
        """Return a preprocessing with what is not given filled in: 256/224 of the size, of which that size is kept."""
        tall, wide = (size, size) if isinstance(size, int) else size
        if resize is None:
            resize = round(min(tall, wide) * _RESIZED)
        cut = (tall, wide) if crop is None else (crop, crop) if isinstance(crop, int) else crop
        sides = [tall, wide, *cut, *((resize,) if isinstance(resize, int) else resize)]
        if not all(isinstance(side, int) and 0 < side <= 2**14 for side in sides):
            raise InvalidInput(f"sizes of images must be from 1 to {2**14} pixels, got {sides}")
        if interpolation not in get_args(Interpolation):
            known = ", ".join(get_args(Interpolation))
            raise InvalidInput(f"interpolation must be one of {known}, got {interpolation!r}")
        return cls((tall, wide), resize, cut, normalisation, interpolation, always, grey)

    def prepared(self, image: Image.Image) -> Image.Image:
        """Return an image of the input's size.

        >>> Preprocessing.of((8, 16)).prepared(Image.new("RGB", (100, 50))).size
        (16, 8)
        """
        upright = self.upright(image)
        tall, wide = self.size
        if upright.size == (wide, tall) and not self.always:
            return upright
        part = _middle(upright, self.resize, self.crop, self.filter)
        return part if part.size == (wide, tall) else part.resize((wide, tall), self.filter)

    def upright(self, image: Image.Image) -> Image.Image:
        """Return an image rotated as its EXIF data say, with the channels of the input."""
        return ImageOps.exif_transpose(image).convert("L" if self.grey else "RGB")

    @property
    def filter(self) -> Image.Resampling:
        """The interpolation, as Pillow names it."""
        return Image.Resampling[self.interpolation.upper()]

    def described(self) -> str:
        """Return what is done, for a sentence."""
        whole = "" if self.always else f"; {_times(self.size)} images as they are"
        scaled = (
            f"the shorter side scaled to {self.resize}"
            if isinstance(self.resize, int)
            else f"scaled to {_times(self.resize)}"
        )
        cut = f", centre crop{'' if self.crop == self.size else f' of {_times(self.crop)}, scaled to the input'}"
        cut = "" if self.resize == self.crop == self.size else cut
        how = "" if self.interpolation == "bilinear" else f", {self.interpolation}"
        mean, std = (
            " ".join(f"{n:.4g}" for n in row) for row in (self.normalisation.mean, self.normalisation.std)
        )
        grey = ", in grey" if self.grey else ""
        return f"{_times(self.size)}{grey}: {scaled}{how}{cut}{whole}; normalised with mean {mean}, std {std}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it.

        >>> Preprocessing.from_dict(Preprocessing.of(32).as_dict()) == Preprocessing.of(32)
        True
        """
        resize = self.resize if isinstance(self.resize, int) else list(self.resize)
        return {
            "size": list(self.size), "resize": resize, "crop": list(self.crop), "mean": list(self.normalisation.mean),
            "std": list(self.normalisation.std), "interpolation": self.interpolation, "always": self.always,
            "grey": self.grey,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Preprocessing:
        """Return what `as_dict` described; raise for anything else."""
        try:
            resize = found["resize"]
            return cls.of(
                _pair(found["size"]), resize if isinstance(resize, int) else _pair(resize), _pair(found["crop"]),
                checked_normalisation(found["mean"], found["std"]), found["interpolation"], bool(found["always"]),
                bool(found["grey"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"preprocessing must hold size, resize, crop, mean, std and interpolation, but: {error}; "
                "save the model again"
            ) from error


def checked_normalisation(mean: Any, std: Any) -> Normalisation:
    """Return the normalisation with a mean and a standard deviation for each channel.

    >>> checked_normalisation([0.5], [0.25])
    Normalisation(mean=(0.5,), std=(0.25,))
    """
    rows = tuple(float(n) for n in mean), tuple(float(n) for n in std)
    if len(rows[0]) != len(rows[1]) or not rows[0] or min(rows[1]) <= 0:
        raise InvalidInput(
            f"mean and std must hold one number for each channel, std above 0, got {list(mean)} and {list(std)}"
        )
    return Normalisation(*rows)


def _pair(found: Any) -> tuple[int, int]:
    tall, wide = found
    return int(tall), int(wide)


def _times(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _middle(
    image: Image.Image, resize: int | tuple[int, int], crop: tuple[int, int], how: Image.Resampling
) -> Image.Image:
    """Return the middle of a scaled image."""
    tall, wide = crop
    if isinstance(resize, int):
        scale = resize / min(image.size)
        width, height = (
            max(side, int(length * scale)) for side, length in zip((wide, tall), image.size, strict=True)
        )
    else:
        height, width = max(tall, resize[0]), max(wide, resize[1])
    left, top = round((width - wide) / 2), round((height - tall) / 2)
    return image.resize((width, height), how).crop((left, top, left + wide, top + tall))
