"""The one answer of every criterion: in which order a group's channels leave; and the clusters behind it."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slimilar.errors import InvalidInput
from slimilar.similarity.distances import Floats

Ints = npt.NDArray[np.int64]

NOBODY = -1
"""The stand-in of a channel that nobody represents (criteria that rank channels one by one)."""


@dataclass(frozen=True, eq=False)
class RemovalOrder:
    """In which order a group's channels leave, at what height each, and who stands in for it.

    Step k removes channel `removed[k]` at `heights[k]`; `stand_in[k]` is the channel that represents
    it from then on (it may itself leave later), or NOBODY. Heights never fall, so that cutting at
    a threshold, and walking a few steps back, always leave nested sets of kept channels.

    >>> order = RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], stand_in=[0, 1])
    >>> order.steps(0.4), order.steps(0.5)
    (1, 2)
    """

    removed: Ints
    heights: Floats
    stand_in: Ints

    def __post_init__(self) -> None:
        _freeze(self, removed=np.int64, heights=np.float64, stand_in=np.int64)
        if self.removed.ndim != 1 or not self.removed.shape == self.heights.shape == self.stand_in.shape:
            got = f"{self.removed.shape}, {self.heights.shape} and {self.stand_in.shape}"
            raise InvalidInput(f"removed, heights and stand_in must be as long as each other, got {got}")
        if np.isnan(self.heights).any() or (np.diff(self.heights) < 0).any():
            raise InvalidInput("heights must never fall, got a step below the one before or NaN")
        self._check_channels()

    def _check_channels(self) -> None:
        steps = np.arange(len(self.removed))
        if self.stand_in.min(initial=0) < NOBODY:
            raise InvalidInput(f"stand_in must name channels or NOBODY, got channel {self.stand_in.min()}")
        highest = max(self.removed.max(initial=0), self.stand_in.max(initial=0))
        leaves = np.full(highest + 2, len(steps))  # channel -> its step; NOBODY finds the last entry
        leaves[self.removed] = steps
        if self.removed.min(initial=0) < 0 or not np.array_equal(leaves[self.removed], steps):
            raise InvalidInput(
                "removed must name each channel at most once, got a repeated or negative index"
            )
        early = np.flatnonzero(leaves[self.stand_in] <= steps)
        if len(early):
            raise InvalidInput(
                f"stand_in must still be there at its step, got channel {self.stand_in[early[0]]} "
                f"at step {early[0]}"
            )

    def __len__(self) -> int:
        return len(self.removed)

    def steps(self, threshold: float) -> int:
        """Return how many channels leave below a threshold: those of height < threshold."""
        return int(np.searchsorted(self.heights, _checked(threshold), side="left"))


def _checked(threshold: object) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= float(threshold) <= 1:
        raise InvalidInput(f"threshold must be a number in [0, 1], got {threshold!r}")
    return float(threshold)


def _freeze(order: RemovalOrder, **dtypes: type[np.generic]) -> None:
    """Give a frozen dataclass arrays of its own that nobody can write to."""
    for name, dtype in dtypes.items():
        array: npt.NDArray[Any] = np.array(getattr(order, name), dtype=dtype)
        array.flags.writeable = False
        object.__setattr__(order, name, array)


class Cluster(NamedTuple):
    """Channels that say the same thing, and the one that speaks for them (a member too)."""

    representative: int
    members: tuple[int, ...]


def representatives(order: RemovalOrder, threshold: float, n: int) -> list[int]:
    """Return which of n channels are kept at a threshold, in ascending order.

    >>> representatives(RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], stand_in=[0, 1]), 0.2, n=3)
    [0, 1]
    """
    return kept_after(order, order.steps(threshold), n)


def clusters(order: RemovalOrder, threshold: float, n: int) -> list[Cluster]:
    """Return the clusters at a threshold: all merges of height < threshold made, in order of representative.

    Threshold 0 leaves every channel on its own.

    >>> clusters(RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], stand_in=[0, 1]), 0.2, n=3)
    [Cluster(representative=0, members=(0, 2)), Cluster(representative=1, members=(1,))]
    """
    return clusters_after(order, order.steps(threshold), n)


def kept_after(order: RemovalOrder, steps: int, n: int) -> list[int]:
    """Return which of n channels are left after so many steps, in ascending order."""
    _check_steps(order, steps, n)
    return np.delete(np.arange(n), order.removed[:steps]).tolist()


def clusters_after(order: RemovalOrder, steps: int, n: int) -> list[Cluster]:
    """Return the clusters after so many steps; a channel removed with NOBODY standing in is in none."""
    members: dict[int, list[int]] = {channel: [] for channel in kept_after(order, steps, n)}
    speaker = {channel: channel for channel in members}
    # Backwards, because whoever stands in at a step may leave at a later one.
    for step in reversed(range(steps)):
        speaker[int(order.removed[step])] = speaker.get(int(order.stand_in[step]), NOBODY)
    for channel in sorted(speaker):
        if speaker[channel] != NOBODY:
            members[speaker[channel]].append(channel)
    return [Cluster(channel, tuple(group)) for channel, group in members.items()]


def _check_steps(order: RemovalOrder, steps: int, n: int) -> None:
    if not 0 <= steps <= len(order):
        raise InvalidInput(f"steps must lie between 0 and {len(order)}, got {steps}")
    if max(order.removed.max(initial=-1), order.stand_in.max(initial=-1)) >= n:
        raise InvalidInput(f"n must be the group's width, above every channel of the order, got {n}")
