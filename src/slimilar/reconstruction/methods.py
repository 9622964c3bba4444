"""The names of the reconstruction methods."""

from __future__ import annotations

from enum import Enum

from slimilar.errors import InvalidInput, Option
from slimilar.utils.suggestions import choose


class Reconstruction(str, Enum):  # StrEnum came with Python 3.11
    """What the consumers of a removed channel do instead of reading it."""

    NONE = "none"  # nothing
    MERGE = "merge"  # add its kernel to that of its representative (Eq. 6)
    MEAN = "mean"  # take in its expected value, from batch norms alone
    # Data-free: regress it on the kept channels, as Gaussians correlated as their filters are.
    GAUSSIAN = "gaussian"
    LEAST_SQUARES = "least-squares"  # refit the kernels to calibration images

    __str__ = str.__str__


# Least squares with images, the Gaussian regression without; none if a model cannot be replayed.
AUTO = "auto"
LINEAR = "linear"  # the former name of both: least squares with images, the Gaussian regression without
OPTIONS = (AUTO, *(str(method) for method in Reconstruction), LINEAR)


def reconstruction_method(name: str, images: bool, option: str = "reconstruction") -> Reconstruction:
    """Return the method that a name stands for; "auto" and "linear" depend on whether there are images.

    >>> reconstruction_method("linear", images=True), reconstruction_method("auto", images=False)
    (<Reconstruction.LEAST_SQUARES: 'least-squares'>, <Reconstruction.GAUSSIAN: 'gaussian'>)
    """
    name = choose(name, OPTIONS, option)
    if name in (AUTO, LINEAR):
        return Reconstruction.LEAST_SQUARES if images else Reconstruction.GAUSSIAN
    if name == Reconstruction.LEAST_SQUARES and not images:
        raise InvalidInput(
            Option(option, name), " needs calibration images, got none: pass ", Option("calibration"), " or ",
            Option(option, "gaussian"),
        )  # fmt: skip
    return Reconstruction(name)


def in_words(name: str, images: int) -> str:
    """Return for a reader how consumers were reconstructed, given how many images they were fitted to.

    >>> in_words("linear", images=256), in_words("auto", images=0), in_words("none", images=0)
    ('least squares on 256 images', 'gaussian (data-free)', 'none')
    """
    method = reconstruction_method(name, images > 0)
    if method is Reconstruction.LEAST_SQUARES:
        return f"least squares on {images} images"
    return f"{method} (data-free)" if method is Reconstruction.GAUSSIAN else str(method)
