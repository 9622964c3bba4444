"""Which images a scan looks at, and at which widths it measures: as much as an effort affords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration.batches import AFFORDED
from slimilar.calibration.holdout import hold_out
from slimilar.criteria.base import CalibrationView

_UNKNOWNS = 4608  # of a kernel that is refitted as a whole, half as many in large networks
# times the effort, where less would leave a handful of images: eight mislead on ResNet-50
_STRETCH = 6


@dataclass(frozen=True, eq=False)
class ScanImages:
    """The calibration images in parts: what is fitted to `fit` is measured on the others, which never meet it."""

    fit: Sequence[Tensor]  # kernels and the order in which channels leave
    check: Sequence[Tensor]  # the strengths of ridges
    measure: Sequence[Tensor]  # the divergence at the output
    fractions: NDArray[np.float64]  # of a group's channels: the widths at which that is measured
    single: bool  # one image: nothing to measure on but itself
    unknowns: int  # of a kernel that is refitted as a whole; of larger ones, channels are mixed first

    @staticmethod
    def of(calibration: CalibrationView, groups: int, effort: float) -> ScanImages:
        """Return the parts for a network of so many groups; `effort` is in FLOPs."""
        whole = calibration.costs.at(np.ones(calibration.grouping.unit_count, np.bool_)).flops  # of one image
        parts = hold_out(calibration.batches)
        held_out = parts.measure or parts.fit
        fit, check = (
            _affordable_batches(parts.fit, AFFORDED, whole),
            _affordable_batches(held_out, AFFORDED / 3, whole),
        )
        widths, images = _widths_and_images(effort / (0.5 * whole * max(1, groups)))
        size = len(held_out[0])
        return ScanImages(
            fit,
            check,
            [b[:images] if images < size else b for b in held_out[: max(1, images // size)]],
            np.linspace(0, 0.95, widths + 1)[1:],
            not parts.measure,
            _UNKNOWNS // 2 if len(fit) < len(parts.fit) else _UNKNOWNS,
        )


def _affordable_batches(batches: Sequence[Tensor], flops: float, whole: int) -> Sequence[Tensor]:
    """Return as many batches as one pass over them may cost."""
    return batches[: max(1, int(flops / whole / len(batches[0])))]


def _widths_and_images(affordable: float) -> tuple[int, int]:
    """Return at how many widths, on how many images, to measure: their product is affordable, within limits.

    >>> _widths_and_images(1e6), _widths_and_images(200), _widths_and_images(12), _widths_and_images(3)
    ((6, 256), (5, 40), (4, 16), (3, 8))
    """
    for widths, least in ((6, 64), (5, 32), (4, 16)):
        if affordable / widths >= least:
            return widths, min(int(affordable / widths), 256)
    return (4, 16) if _STRETCH * affordable >= 4 * 16 else (3, 8)
