"""How often each tap of a kernel meets the image, and not the zeros around it.

A constant added to a channel reaches a consumer through the taps that lie inside: near the border some do not, and on
small images that is most of them. A transposed convolution leaves places that a tap never writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration.program import Instruction


@dataclass(frozen=True)
class Taps:
    """A convolution along one axis: sizes of its input and output, of its kernel, and how that moves."""

    input: int
    output: int
    kernel: int
    stride: int
    padding: int
    dilation: int


def along(taps: Taps, transposed: bool = False) -> Tensor:
    """Return for every tap the share of the output's places at which it takes something in.

    >>> along(Taps(input=4, output=4, kernel=3, stride=1, padding=1, dilation=1)).tolist()
    [0.75, 1.0, 0.75]
    """
    size, limit = (taps.input, taps.output) if transposed else (taps.output, taps.input)
    start = np.arange(size)[:, None] * taps.stride - taps.padding
    meets = start + np.arange(taps.kernel) * taps.dilation
    return torch.from_numpy(((meets >= 0) & (meets < limit)).sum(0) / taps.output)


def covered(
    instruction: Instruction, kernel: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> Tensor:
    """Return that share for all taps of an operator, in the order of its weight; `before` and `after` are sizes."""
    if "convolution" not in instruction.func.name():
        return torch.ones(1, dtype=torch.float64)
    stride, padding, dilation, transposed = instruction.args[3:7]
    shares = [
        along(Taps(*sizes, kernel[i], *(_at(given, i) for given in (stride, padding, dilation))), transposed)
        for i, sizes in enumerate(zip(before, after, strict=True))
    ]
    return reduce(lambda a, b: (a[:, None] * b).flatten(), shares)


def _at(numbers: Sequence[int], i: int) -> int:
    return numbers[i] if len(numbers) > 1 else numbers[0]
