"""Removal orders, the answer of every criterion for a group of channels, and the clusters they define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slimilar.errors import InvalidInput
from slimilar.similarity.distances import Floats
from slimilar.utils.checks import check_share

Ints = npt.NDArray[np.int64]

NO_REPRESENTATIVE = -1
"""In place of a representative, for criteria that rank channels one by one."""


@dataclass(frozen=True, eq=False)
class RemovalOrder:
    """The order in which the channels of a group are removed, with a height and a representative for each.

    Step k removes channel `removed[k]` at height `heights[k]`. From then on channel `representative[k]`
    represents it (and may be removed later itself), or none does (NO_REPRESENTATIVE). Heights never decrease,
    so the sets of kept channels at different thresholds are nested.

    >>> order = RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], representative=[0, 1])
    >>> order.steps(0.4), order.steps(0.5)
    (1, 2)
    """

    removed: Ints
    heights: Floats
    representative: Ints
    damage: Floats | None = None  # what each step adds to the output's divergence, where that was measured

    def __post_init__(self) -> None:
        _freeze(self, removed=np.int64, heights=np.float64, representative=np.int64)
        if self.damage is not None:
            _freeze(self, damage=np.float64)
        if (
            self.removed.ndim != 1
            or not self.removed.shape == self.heights.shape == self.representative.shape
        ):
            got = f"{self.removed.shape}, {self.heights.shape} and {self.representative.shape}"
            raise InvalidInput(f"removed, heights and representative must have the same length, got {got}")
        if np.isnan(self.heights).any() or (np.diff(self.heights) < 0).any():
            raise InvalidInput("heights must never decrease, got a step below the one before or NaN")
        self._check_channels()

    def _check_channels(self) -> None:
        steps = np.arange(len(self.removed))
        if self.representative.min(initial=0) < NO_REPRESENTATIVE:
            raise InvalidInput(f"representative must hold channels or -1, got {self.representative.min()}")
        highest = max(self.removed.max(initial=0), self.representative.max(initial=0))
        step_of = np.full(highest + 2, len(steps))  # channel -> step; NO_REPRESENTATIVE is the last entry
        step_of[self.removed] = steps
        if self.removed.min(initial=0) < 0 or not np.array_equal(step_of[self.removed], steps):
            raise InvalidInput(
                "removed must hold each channel at most once, got a repeated or negative index"
            )
        gone = np.flatnonzero(step_of[self.representative] <= steps)
        if len(gone):
            raise InvalidInput(
                f"a representative must not be removed before its step, got channel {self.representative[gone[0]]} "
                f"at step {gone[0]}"
            )

    def __len__(self) -> int:
        return len(self.removed)

    @property
    def stand_in(self) -> Ints:
        """The earlier name of `representative`."""
        return self.representative

    def steps(self, threshold: float) -> int:
        """Return how many channels are removed at a threshold: those of height < threshold."""
        return int(np.searchsorted(self.heights, check_share(threshold), side="left"))


def _freeze(order: RemovalOrder, **dtypes: type[np.generic]) -> None:
    """Replace the arrays of a frozen dataclass by read-only copies."""
    for name, dtype in dtypes.items():
        array: npt.NDArray[Any] = np.array(getattr(order, name), dtype=dtype)
        array.flags.writeable = False
        object.__setattr__(order, name, array)


class Cluster(NamedTuple):
    """Channels that carry the same information, and their representative (a member too)."""

    representative: int
    members: tuple[int, ...]


def representatives(order: RemovalOrder, threshold: float, n: int) -> list[int]:
    """Return which of n channels are kept at a threshold, in ascending order.

    >>> representatives(RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], representative=[0, 1]), 0.2, n=3)
    [0, 1]
    """
    return kept_after(order, order.steps(threshold), n)


def clusters(order: RemovalOrder, threshold: float, n: int) -> list[Cluster]:
    """Return the clusters at a threshold, after all merges of height < threshold, in order of representative.

    At threshold 0 every channel is a cluster.

    >>> clusters(RemovalOrder(removed=[2, 0], heights=[0.1, 0.4], representative=[0, 1]), 0.2, n=3)
    [Cluster(representative=0, members=(0, 2)), Cluster(representative=1, members=(1,))]
    """
    return clusters_after(order, order.steps(threshold), n)


def kept_after(order: RemovalOrder, steps: int, n: int) -> list[int]:
    """Return which of n channels are kept after a number of steps, in ascending order."""
    _check_steps(order, steps, n)
    return np.delete(np.arange(n), order.removed[:steps]).tolist()


def clusters_after(order: RemovalOrder, steps: int, n: int) -> list[Cluster]:
    """Return the clusters after a number of steps; channels removed without a representative are in none."""
    members: dict[int, list[int]] = {channel: [] for channel in kept_after(order, steps, n)}
    kept = {channel: channel for channel in members}
    # Backwards, because a representative may itself be removed at a later step.
    for step in reversed(range(steps)):
        kept[int(order.removed[step])] = kept.get(int(order.representative[step]), NO_REPRESENTATIVE)
    for channel in sorted(kept):
        if kept[channel] != NO_REPRESENTATIVE:
            members[kept[channel]].append(channel)
    return [Cluster(channel, tuple(group)) for channel, group in members.items()]


def _check_steps(order: RemovalOrder, steps: int, n: int) -> None:
    if not 0 <= steps <= len(order):
        raise InvalidInput(f"steps must lie between 0 and {len(order)}, got {steps}")
    if max(order.removed.max(initial=-1), order.representative.max(initial=-1)) >= n:
        raise InvalidInput(f"n must be the group's width, above every channel of the order, got {n}")
