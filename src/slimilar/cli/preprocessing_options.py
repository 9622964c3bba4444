"""How images are prepared for a model, as typed on the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli.model_source import OpenedModel
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.data import Normalisation, Preprocessing

NORMALISATIONS = ("auto", "raw", "imagenet", "cifar10", "cifar100")
_option = partial(typer.Option, rich_help_panel="Preprocessing of images")
_numbers_option = partial(_option, metavar="NUMBERS")
_size_option = partial(_option, metavar="SIZE")


@dataclass(frozen=True)
class PreprocessingOptions:
    """The options that say how images are prepared: "auto" and None leave it to what is known of the model."""

    normalise: Annotated[
        str,
        _option(
            help="Normalisation of pixels: auto (that of the saved model, of its library, or of "
            "its dataset), raw, imagenet, cifar10 or cifar100.",
            metavar="HOW",
        ),
    ] = "auto"
    mean: Annotated[
        str | None,
        _numbers_option(
            help="Mean of each channel for pixels from 0 to 1: 0.5,0.5,0.5. With --std, replaces --normalise."
        ),
    ] = None
    std: Annotated[str | None, _numbers_option(help="Standard deviation of each channel.")] = None
    resize: Annotated[
        str | None,
        _size_option(
            help="Scale the shorter side of image files to N pixels, or the whole image to HxW. Default: 256/224 of "
            "the input; files that already have the input's size are not resized."
        ),
    ] = None
    crop: Annotated[
        str | None, _size_option(help="Then crop the centre to N pixels, or HxW. Default: the input's size.")
    ] = None

    def __post_init__(self) -> None:
        from slimilar.utils.suggestions import choose

        choose(self.normalise, NORMALISATIONS, "normalise")
        if (self.mean is None) != (self.std is None):
            raise InvalidInput("--mean and --std must be passed together, got one of them; pass both")
        if self.mean is not None and self.normalise != "auto":
            raise InvalidInput(
                f"--mean and --std replace --normalise, got --normalise {self.normalise}; leave it out"
            )

    def normalisation(self) -> Normalisation | None:
        """Return the normalisation that was asked for; None for "auto"."""
        from slimilar.data.cifar import NORMALISATIONS as CIFAR
        from slimilar.data.images import RAW
        from slimilar.data.preprocessing import IMAGENET, checked_normalisation

        if self.mean is not None and self.std is not None:
            return checked_normalisation(_means(self.mean), _numbers("--std", self.std))
        named = {"auto": None, "raw": RAW, "imagenet": IMAGENET, **CIFAR}
        return named[self.normalise]

    def preprocessing(self, opened: OpenedModel) -> Preprocessing:
        """Return how image files are prepared: as asked for, else as is known of the model, else as for ImageNet."""
        found = opened.preprocessing or _usual(opened)
        resize = None if self.resize is None else _size("--resize", self.resize)
        crop = None if self.crop is None else _pair(_size("--crop", self.crop))
        if self.resize is not None or self.crop is not None:
            found = type(found).of(
                found.size,
                resize or found.resize,
                crop,
                found.normalisation,
                found.interpolation,
                True,
                found.grey,
            )
        wanted = self.normalisation()
        return found if wanted is None else replace(found, normalisation=wanted)

    def words(self) -> list[str]:
        """Return them as on a command line, without those that have their default."""
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return [f"--{name} {shlex.quote(str(getattr(self, name)))}" for name in changed]


def _usual(opened: OpenedModel) -> Preprocessing:
    """Return the preprocessing for a model of which nothing is known."""
    from slimilar.data.images import RAW
    from slimilar.data.preprocessing import IMAGENET, Preprocessing

    grey = opened.channels == 1
    return Preprocessing.of(opened.size, normalisation=RAW if grey else IMAGENET, grey=grey)


def _means(text: str) -> list[float]:
    """Return the means of pixels from 0 to 1."""
    found = _numbers("--mean", text)
    if max(found) > 1:
        raise InvalidInput(
            f"--mean and --std must be those of pixels from 0 to 1, got --mean {text}; divide both by 255"
        )
    return found


def _numbers(option: str, text: str) -> list[float]:
    """Return numbers as in 0.5,0.5,0.5."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{option} must be numbers such as 0.5,0.5,0.5, got {text!r}") from None


def _size(option: str, text: str) -> Any:
    """Return a side in pixels, or a height and width as in 32x48."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)?", text):
        raise InvalidInput(
            f"{option} must be pixels such as 256, or height and width such as 32x32, got {text!r}"
        )
    sides = [int(part) for part in text.split("x")]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
