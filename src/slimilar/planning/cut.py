"""One point of the trade-off between size and what is removed, and the curve of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slimilar.planning.cost import Cost, human
from slimilar.similarity.removal_order import Cluster, RemovalOrder, clusters_after
from slimilar.surgery.rewrite import Kept


@dataclass(frozen=True, eq=False)
class Removal:
    """The channels of one group that leave: the first `steps` of a removal order."""

    order: RemovalOrder
    steps: int
    width: int  # of the group, before


@dataclass(frozen=True, eq=False)
class Cut:
    """One way to prune: which channels stay, and what the smaller network costs. Exact, without building it."""

    threshold: float  # or the ratio, if that was the target
    kept: Mapping[str, tuple[int, ...]]  # group -> channels that stay
    removals: Mapping[str, Removal]  # group -> channels that leave; none where reconstruction chose them
    cost: Cost
    before: Cost
    mask: Kept  # over the channels of all groups
    round_to: int = 1  # what widths are multiples of, at most: narrow groups take less
    held: int = 0  # channels that the target alone would remove, and that stay because widths are rounded up
    # Whether the threshold gives these widths; no threshold gives those of a rounded budget.
    by_threshold: bool = True

    @property
    def widths(self) -> dict[str, int]:
        """The number of channels that stay, by group."""
        return {name: len(channels) for name, channels in self.kept.items()}

    @cached_property
    def clusters(self) -> Mapping[str, tuple[Cluster, ...]]:
        """The clusters of every group, a representative and its members each; computed on first use."""
        return {
            name: _clusters(self.removals[name])
            if name in self.removals
            else tuple(Cluster(channel, (channel,)) for channel in channels)
            for name, channels in self.kept.items()
        }

    def with_channels(self, kept: Mapping[str, tuple[int, ...]], mask: Kept) -> Cut:
        """Return a cut of the same widths in which other channels stay, each a cluster of its own."""
        return replace(self, kept=kept, removals={}, mask=mask)

    @property
    def flops(self) -> int:
        """FLOPs in the paper's convention."""
        return self.cost.flops

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.cost.macs

    @property
    def params(self) -> int:
        """Parameters."""
        return self.cost.params

    def __str__(self) -> str:
        saved = 1 - self.flops / max(1, self.before.flops)
        fewer = 1 - self.params / max(1, self.before.params)
        threshold = f"threshold {self.threshold:.4g}: " if self.by_threshold else ""
        return (
            f"{threshold}{human(self.before.flops)} -> {human(self.flops)} FLOPs (-{saved:.1%}), "
            f"{human(self.before.params)} -> {human(self.params)} parameters (-{fewer:.1%})"
        )

    __repr__ = __str__


def _clusters(removal: Removal) -> tuple[Cluster, ...]:
    return tuple(clusters_after(removal.order, removal.steps, removal.width))


@dataclass(frozen=True)
class CurvePoint:
    """One point of the trade-off."""

    threshold: float
    flops: int
    macs: int
    params: int
    widths: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Curve:
    """Every point of the trade-off, as arrays; a `CurvePoint` by index."""

    threshold: NDArray[np.float64]
    flops: NDArray[np.int64]
    macs: NDArray[np.int64]
    params: NDArray[np.int64]
    widths: Mapping[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.threshold)

    def __getitem__(self, i: int) -> CurvePoint:
        widths = {name: int(w[i]) for name, w in self.widths.items()}
        return CurvePoint(
            float(self.threshold[i]), int(self.flops[i]), int(self.macs[i]), int(self.params[i]), widths
        )

    def __iter__(self) -> Iterator[CurvePoint]:
        return (self[i] for i in range(len(self)))
