"""Channel groups: which parameter axes share channels, who writes them, what lies between, who reads them.

Made from a trace by `grouping.py`. A *unit* is a set of channels that leave together (usually one channel:
its filter, its batch-norm entries, its kernels in every consumer). A *group* is the set of units that one layer writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from slimilar.graph.labels import Atoms
from slimilar.graph.reasons import FreezeKind

if TYPE_CHECKING:
    from slimilar.graph.coupling import Coupling

Residual = Literal["inner", "select", "joint"]
Indices = NDArray[np.int64]

FIXED = -1  # a position that belongs to no unit and always stays


@dataclass(frozen=True, eq=False)
class Member:
    """One axis of one parameter or buffer: `units[i]` is the unit at index i, or `FIXED`."""

    tensor: str
    axis: int
    units: Indices


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """A batch norm that normalises a group: row u of `positions` says where unit u stands in it."""

    module: str
    weight: str | None
    bias: str | None
    running_mean: str | None
    running_var: str | None
    eps: float
    positions: Indices  # (width, channels per unit)
    op: int


@dataclass(frozen=True, eq=False)
class Consumer:
    """An operator that sums over a group's channels.

    Position p of the input's channel `axis` holds unit `units[p]` (or `FIXED`) and is multiplied with index
    `weight_index[p]` of axis `weight_axis` of the parameter `weight`.
    """

    module: str
    op: int
    axis: int
    units: Indices
    weight: str | None
    weight_axis: int
    weight_index: Indices


class ChannelGroup:
    """Channels that one layer writes, and all that is coupled to them. Not to be changed.

    `members`, `consumers`, `through` and `channels` are computed when first asked for: a network is grouped once for
    every assumption that is tried, and of a DenseNet these lists take a quarter of the time.
    """

    def __init__(self, coupling: Coupling, number: int, fixed: Mapping[int, str], residual: bool) -> None:
        self._coupling, self._number = coupling, number
        self.producers = coupling.producers_of(number)
        self.name = self.producers[0]
        self.width = coupling.width_of(number)
        self.batch_norms = coupling.norms_of(number)
        self.fixed = fixed  # units that have to stay, and why
        self.residual = residual  # a stream that residual additions join

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Every axis of a parameter or buffer that holds channels of the group."""
        return self._coupling.members_of(self._number)

    @cached_property
    def filters(self) -> tuple[Member, ...]:
        """The members that write the group's channels, in the order of their producers."""
        axes = self._coupling.written_axes_of(self._number)
        return tuple(m for axis in axes for m in self.members if (m.tensor, m.axis) == axis)

    @cached_property
    def consumers(self) -> tuple[Consumer, ...]:
        """The operators that sum over the group's channels."""
        return self._coupling.consumers_of(self._number)

    @cached_property
    def through(self) -> tuple[tuple[str, str], ...]:
        """The per-channel functions on the way, in order: (operator, module)."""
        return self._coupling.through_of(self._number)

    @cached_property
    def channels(self) -> tuple[Indices, ...]:
        """For each unit, its output channels in the first producer."""
        return self._coupling.channels_of(self._number)

    def __repr__(self) -> str:
        norms = ", ".join(b.module for b in self.batch_norms) or "none"
        return f"ChannelGroup({self.name}: {self.width} channels, batch norms: {norms}, {len(self.members)} members)"


@dataclass(frozen=True)
class Frozen:
    """Channels that cannot leave, and why."""

    name: str
    width: int
    reason: str  # a sentence for people
    kind: FreezeKind = FreezeKind.CRITERION  # what code asks for


@dataclass(frozen=True, eq=False)
class Grouping:
    """All groups of a trace, and for every atom the unit that it belongs to, numbered over all groups."""

    groups: tuple[ChannelGroup, ...]
    frozen: tuple[Frozen, ...]
    unit_of: Atoms  # atom -> offset of its group + unit, or FIXED
    offsets: tuple[int, ...]
    unit_count: int
