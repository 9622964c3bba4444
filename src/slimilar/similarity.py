r"""Which channels say the same thing: distance, linkage tree, removal order, clusters.

Tensors and arrays only; nothing here knows what a network is.

>>> import torch
>>> beta = torch.tensor([0.0, 0.1, 3.0, 3.1, 9.0])
>>> gamma = torch.tensor([0.1, 0.2, 0.4, 0.3, 1.0])
>>> tree = linkage_tree(normalise(channel_distance(beta, gamma)))
>>> order = removal_order(tree, gamma)
>>> [cluster.members for cluster in clusters(order, threshold=0.05, n=5)]
[(0, 1), (2, 3), (4,)]
>>> representatives(order, threshold=0.05, n=5)
[1, 2, 4]
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster import hierarchy
from torch import Tensor

from slimilar.distances import (
    Distances,
    Floats,
    ShiftBound,
    activation_distance,
    channel_distance,
    channel_pairs,
    checked_pairs,
    float64,
    is_constant,
    is_uninformative,
    normalise,
    pair_distances,
    shift_bound,
)
from slimilar.errors import InvalidInput

Linkage = Literal["average", "complete", "single"]
Ints = npt.NDArray[np.int64]

NOBODY = -1
"""The stand-in of a channel that nobody represents (criteria that rank channels one by one)."""


# --- from distances to an order --------------------------------------------------------------------


def linkage_tree(distance: Tensor | Floats, linkage: Linkage = "average") -> Floats:
    """Return SciPy's linkage matrix of the channels: n - 1 merges, of rising height.

    The same distances always give the same tree; between equal distances the lowest index goes first.

    >>> linkage_tree(torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]])).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 3.0]]
    """
    if linkage not in get_args(Linkage):
        raise InvalidInput(f"linkage must be one of {', '.join(get_args(Linkage))}, got {linkage!r}")
    pairs = checked_pairs(distance)
    if len(pairs) == 0:
        return np.zeros((0, 4))
    tree: Floats = hierarchy.linkage(pairs, method=linkage)
    return tree


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


def removal_order(tree: Floats, gamma: Tensor | Floats) -> RemovalOrder:
    """Read a linkage tree as a removal order.

    Each merge keeps, of the two clusters' representatives, the one with the larger |gamma| (the lower
    index where they are equal) and removes the other; so the one kept of any cluster is its largest |gamma|.

    >>> tree = linkage_tree(torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]]))
    >>> order = removal_order(tree, torch.tensor([0.5, -0.7, 0.6]))
    >>> order.removed.tolist(), order.stand_in.tolist(), order.heights.tolist()
    ([0, 2], [1, 1], [1.0, 3.0])
    """
    removed, stand_in = merged(tree, _sizes(gamma, len(tree) + 1))
    return RemovalOrder(removed, np.maximum.accumulate(tree[:, 2]), stand_in)


def merged(merges: Floats, size: list[float]) -> tuple[Ints, Ints]:
    """Return who leaves and who stays at each of a tree's first merges, given |gamma| of all channels."""
    representative = list(range(len(size)))
    removed, stand_in = [], []
    for left, right in merges[:, :2].astype(np.int64).tolist():
        kept, gone = representative[left], representative[right]
        if size[gone] > size[kept] or (size[gone] == size[kept] and gone < kept):
            kept, gone = gone, kept
        representative.append(kept)
        removed.append(gone)
        stand_in.append(kept)
    return np.array(removed, np.int64), np.array(stand_in, np.int64)


def _sizes(gamma: Tensor | Floats, n: int) -> list[float]:
    """Return |gamma| of n channels as plain floats."""
    values = float64(torch.as_tensor(gamma))
    if tuple(values.shape) != (n,) or not values.isfinite().all():
        got = f"shape {tuple(values.shape)}" if tuple(values.shape) != (n,) else "NaN or infinity"
        raise InvalidInput(f"gamma must hold {n} finite values, one for each leaf of the tree, got {got}")
    sizes: list[float] = values.abs().tolist()
    return sizes


# --- from an order to clusters ---------------------------------------------------------------------


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


__all__ = [
    "NOBODY", "Cluster", "Distances", "Floats", "Ints", "Linkage", "RemovalOrder", "ShiftBound", "activation_distance",
    "channel_distance", "channel_pairs", "clusters", "clusters_after", "is_constant", "is_uninformative",
    "kept_after", "linkage_tree", "merged", "normalise", "pair_distances", "removal_order", "representatives",
    "shift_bound",
]  # fmt: skip
