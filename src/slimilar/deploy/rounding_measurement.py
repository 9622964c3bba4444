"""Which multiple a runtime likes on this machine: a few layers, timed at widths beside multiples of 32.

A width of 64 + m is compared with what 64 and 96 channels take: where the runtime pads it, or leaves its fast kernel,
it takes longer than in between. Measured on request only (`round_to="measure"`), because it takes seconds and writes to
the user's cache folder; otherwise "auto" stands for 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from slimilar.deploy.layer_times import LayerTimer, known_times, layer_timer
from slimilar.deploy.runtimes import Runtime
from slimilar.errors import InvalidInput, Option
from slimilar.planning.target import PruningTarget
from slimilar.planning.time_model import LayerShape

_ONE, _THREE = (1, 1), (3, 3)
_SHAPES = tuple(
    LayerShape(kernel, _ONE, tuple(k // 2 for k in kernel), _ONE, groups, (1, pixels, pixels), 96, 96)
    for kernel, groups, pixels in ((_ONE, 1, 28), (_THREE, 1, 14), (_THREE, 0, 28))
)
_LOW, _HIGH = 64, 96
_MULTIPLES = (1, 2, 4, 8, 16)
_LONGER = 1.15  # than in between: what a width may cost
_ROUNDS = 3  # of which the shortest time counts: nothing makes a layer faster than it is
_KEY = "multiple"


def with_measured_rounding(target: PruningTarget, runtime: Runtime, device: torch.device) -> PruningTarget:
    """Return a target whose widths are multiples of what a runtime was measured to like, if that is asked for."""
    if target.round_to != "measure":
        return target
    with runtime.thread_count():
        return replace(target, round_to="auto", multiple=measured_multiple(runtime.name, device))


def measured_multiple(runtime: str, device: torch.device) -> int:
    """Return the smallest multiple whose widths take as long as their channels; measured once for each machine."""
    timer = layer_timer(runtime, device)
    if timer is None:
        raise InvalidInput(
            Option("round_to"),
            f' must be a number or "auto" for {runtime}, whose layers cannot be timed alone',
        )
    with known_times(runtime, device) as known:
        if _KEY not in known:
            known[_KEY] = smallest_liked(penalties(timer))
        return int(known[_KEY])


def penalties(timer: LayerTimer) -> dict[int, float]:
    """Return, for every multiple, how much longer a width takes than one in between would, in the median of layers."""
    found = [_penalties(shape, timer) for shape in _SHAPES]
    return {m: float(np.median([entry[m] for entry in found])) for m in _MULTIPLES}


def _penalties(shape: LayerShape, timer: LayerTimer) -> dict[int, float]:
    def size(width: int) -> int:  # what the time of a layer grows with
        return width if shape.groups == 0 else width**2

    widths = (_LOW, _HIGH, *(_LOW + m for m in _MULTIPLES))
    rounds = [[timer(shape, w, w) for w in widths] for _ in range(_ROUNDS)]
    low, high, *between = np.min(rounds, axis=0).tolist()
    sizes = [size(_LOW), size(_HIGH)]
    expected = (float(np.interp(size(_LOW + m), sizes, [low, high])) for m in _MULTIPLES)
    return {m: ms / wanted for m, ms, wanted in zip(_MULTIPLES, between, expected, strict=True)}


def smallest_liked(penalty: Mapping[int, float]) -> int:
    """Return the smallest multiple that costs little, as do all larger ones; 32 if 16 costs much.

    >>> smallest_liked({1: 1.5, 2: 1.0, 4: 1.3, 8: 1.05, 16: 1.0})
    8
    """
    liked = 2 * max(penalty)
    for multiple in sorted(penalty, reverse=True):
        if penalty[multiple] > _LONGER:
            break
        liked = multiple
    return liked
