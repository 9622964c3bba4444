"""What belongs to each group: the axes, norms, producers and consumers that its channels touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from slimilar.graph.groups import FIXED, BatchNorm, Consumer, Indices, Member
from slimilar.graph.labels import Atoms
from slimilar.graph.records import Axis, Norm, Op, Read, Trace, Write

T = TypeVar("T")


class Coupling:
    """What belongs to each group, found for all groups at once when first asked for."""

    def __init__(self, trace: Trace, unit_of: Atoms, offsets: list[int], count: int) -> None:
        self.trace = trace
        self._offsets, self._ends, self._unit_count = offsets, [*offsets[1:], count], count
        self._unit_or_fixed = np.append(unit_of, FIXED)  # CONSTANT = -1 finds the last entry
        self._group_of = np.repeat(np.arange(len(offsets)), np.diff([*offsets, count]))

    @cached_property
    def _axes(self) -> dict[int, list[tuple[Axis, Indices]]]:
        """The axes of parameters and buffers that hold channels of each group, with their units."""
        return self._sort((a, np.arange(a.first, a.first + a.size)) for a in self.trace.axes)

    @cached_property
    def _writes(self) -> dict[int, list[tuple[Write, Indices]]]:
        """The operators that write channels of each group."""
        return self._sort((w, w.atoms) for w in self.trace.writes)

    @cached_property
    def _reads(self) -> dict[int, list[tuple[Read, Indices]]]:
        """The operators that read channels of each group."""
        return self._sort((r, r.atoms) for r in self.trace.reads)

    @cached_property
    def _norms(self) -> dict[int, list[BatchNorm]]:
        """The batch norms that normalise each group as a whole, all units alike."""
        found: dict[int, list[BatchNorm]] = {}
        for norm in self.trace.norms:
            for g, places, units in self._parts(norm.atoms):
                positions = _positions(places, units, self._ends[g] - self._offsets[g])
                if positions is not None:
                    found.setdefault(g, []).append(_batch_norm(norm, positions))
        return found

    @cached_property
    def _home(self) -> Atoms:
        """For every atom, which axis it belongs to, and its index there."""
        home = np.empty((2, self.trace.atom_count), np.int64)
        for i, a in enumerate(self.trace.axes):
            home[0, a.first : a.first + a.size] = i
            home[1, a.first : a.first + a.size] = np.arange(a.size)
        return home

    def _parts(self, atoms: Atoms) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the groups that a vector touches, each with the places of its units, by unit, and these units."""
        units = self._unit_or_fixed[atoms]
        last = int(units.max(initial=FIXED))
        if last == FIXED:
            return
        g = int(self._group_of[last])
        start, end = self._offsets[g], self._ends[g]
        here = np.arange(end - start)
        if len(units) == len(here) and (units == here + start).all():  # the usual case
            yield g, here, here
            return
        order = np.argsort(units, kind="stable")
        in_order = units[order]
        bounds = np.searchsorted(in_order, [*self._offsets, self._unit_count])
        for g in np.flatnonzero(np.diff(bounds)).tolist():
            inside = slice(bounds[g], bounds[g + 1])
            yield g, order[inside], in_order[inside] - self._offsets[g]

    def _sort(self, vectors: Iterable[tuple[T, Atoms]]) -> dict[int, list[tuple[T, Indices]]]:
        """Return, for every group, the items that touch it, each with its vector as units of that group."""
        found: dict[int, list[tuple[T, Indices]]] = {}
        for item, atoms in vectors:
            for g, places, units in self._parts(atoms):
                mine = np.full(len(atoms), FIXED)
                mine[places] = units
                found.setdefault(g, []).append((item, mine))
        return found

    @cached_property
    def _producers(self) -> dict[int, dict[str, None]]:
        """The modules that write channels of each group, as an ordered set."""
        found: dict[int, dict[str, None]] = {}
        for write in self.trace.writes:
            for g, _, _ in self._parts(write.atoms):
                found.setdefault(g, {})[self.trace.ops[write.op].module] = None
        return found

    @cached_property
    def _through(self) -> dict[int, dict[tuple[str, str], None]]:
        """The operators that the channels of each group pass, as an ordered set."""
        found: dict[int, dict[tuple[str, str], None]] = {}
        for op, atoms in self._passed():
            units = self._unit_or_fixed[atoms]
            units = units[units >= 0]
            if len(units):
                low, high = self._group_of[units.min()], self._group_of[units.max()]
                for g in [low] if low == high else np.unique(self._group_of[units]):
                    found.setdefault(int(g), {})[op.name, op.module] = None
        return found

    def _passed(self) -> Iterator[tuple[Op, Atoms]]:
        """Yield the operators that neither read nor write, with the labels they pass on."""
        ends = {
            fact.op
            for facts in (self.trace.reads, self.trace.writes, self.trace.reductions)
            for fact in facts
        }
        for i, op in enumerate(self.trace.ops):
            for value in op.outputs[:1] if i not in ends else ():
                for factor in self.trace.values[value].labels:
                    yield op, factor.numpy().reshape(-1)

    def width_of(self, g: int) -> int:
        """Return the number of units of a group."""
        return self._ends[g] - self._offsets[g]

    def producers_of(self, g: int) -> tuple[str, ...]:
        """Return the modules that write channels of a group."""
        return tuple(self._producers[g])

    def norms_of(self, g: int) -> tuple[BatchNorm, ...]:
        """Return the batch norms that normalise a group as a whole."""
        return tuple(self._norms.get(g, ()))

    def members_of(self, g: int) -> tuple[Member, ...]:
        """Return the axes of parameters and buffers that hold channels of a group."""
        return tuple(Member(a.tensor, a.axis, units) for a, units in self._axes.get(g, ()))

    def written_axes_of(self, g: int) -> list[tuple[str, int]]:
        """Return the axes of parameters by which the channels of a group are written, in order."""
        found: dict[int, None] = {}
        for write, units in self._writes[g]:
            found |= dict.fromkeys(np.unique(self._home[0, write.atoms[units >= 0]]).tolist())
        return [(self.trace.axes[a].tensor, self.trace.axes[a].axis) for a in found]

    def consumers_of(self, g: int) -> tuple[Consumer, ...]:
        """Return the operators that sum over a group's channels."""
        return tuple(self._consumer(read, units) for read, units in self._reads.get(g, ()))

    def through_of(self, g: int) -> tuple[tuple[str, str], ...]:
        """Return the operators that a group's channels pass, with their modules."""
        return tuple(self._through.get(g, ()))

    def channels_of(self, g: int) -> tuple[Indices, ...]:
        """Return, for each unit, its output channels in the first producer."""
        return _places(self._writes[g][0][1], self.width_of(g))

    def _consumer(self, read: Read, units: Indices) -> Consumer:
        """Return a consumer of a group, given the units at every position of what it reads."""
        axis = self.trace.axes[int(self._home[0, read.weight[0]])]
        index = self._home[1, read.weight]
        return Consumer(
            self.trace.ops[read.op].module, read.op, read.axis, units, axis.tensor, axis.axis, index
        )


def _places(units: Indices, width: int) -> tuple[Indices, ...]:
    """Return where each unit stands in a vector."""
    order = np.argsort(units, kind="stable")
    counts = np.bincount(units[units >= 0], minlength=width)
    order = order[len(units) - int(counts.sum()) :]
    if counts.min() == counts.max():
        return tuple(order.reshape(width, -1))
    ends = np.cumsum(counts).tolist()
    return tuple(order[a:b] for a, b in pairwise([0, *ends]))


def _positions(places: Indices, units: Indices, width: int) -> Indices | None:
    """Return for every unit its positions, given all places in order of unit, where all have equally many; else None.

    >>> _positions(np.array([0, 2, 1, 3]), np.array([0, 0, 1, 1]), 2).tolist()
    [[0, 2], [1, 3]]
    """
    each, rest = divmod(len(units), width)
    expected = np.arange(width) if each == 1 else np.repeat(np.arange(width), each)
    return None if rest or (units != expected).any() else places.reshape(width, each)


def _batch_norm(norm: Norm, positions: Indices) -> BatchNorm:
    return BatchNorm(norm.module, *norm.tensors, norm.eps, positions, norm.op)
