"""Channel groups: which parameter axes share channels, who writes them, what lies between, who reads them.

Plain data made from a `Trace`. A *unit* is a set of channels that leave together (usually one channel: its filter,
its batch-norm entries, its kernels in every consumer). A *group* is the set of units that one layer writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from slimilar.graph.labels import Atoms, classes
from slimilar.graph.reasons import LAST_OF_LAYER, LAST_OF_SPLIT, RESIDUAL_STREAM, FreezeKind, Reason
from slimilar.graph.records import Axis, Norm, Op, Read, Trace, Write

Residual = Literal["inner", "select", "joint"]
Indices = NDArray[np.int64]
T = TypeVar("T")

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


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels that one layer writes, and all that is coupled to them; the lists of that are made when looked at."""

    name: str
    width: int
    producers: tuple[str, ...]
    batch_norms: tuple[BatchNorm, ...]
    fixed: Mapping[int, str]  # units that have to stay, and why
    residual: bool  # a stream that residual additions join
    number: int  # its place in the grouping
    coupled: Coupled

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Every axis of a parameter or buffer that holds channels of the group."""
        return tuple(Member(a.tensor, a.axis, units) for a, units in self.coupled.axes.get(self.number, ()))

    @cached_property
    def consumers(self) -> tuple[Consumer, ...]:
        """The operators that sum over the group's channels."""
        return tuple(self.coupled.consumer(r, units) for r, units in self.coupled.reads.get(self.number, ()))

    @cached_property
    def through(self) -> tuple[tuple[str, str], ...]:
        """The per-channel functions on the way, in order: (operator, module)."""
        return tuple(self.coupled.through.get(self.number, ()))

    @cached_property
    def channels(self) -> tuple[Indices, ...]:
        """For each unit, its output channels in the first producer."""
        return _places(self.coupled.writes[self.number][0][1], self.width)

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


def find_groups(trace: Trace, residual: Residual) -> Grouping:
    """Return the channel groups of a trace."""
    label = trace.together
    drafts = _written_together(trace)
    reasons = _reasons(trace, residual)
    _keep_pieces(trace, drafts, reasons)
    free = [reasons.of(units) for units in drafts]
    frozen = _frozen(trace, [(u, w) for u, w in zip(drafts, free, strict=True) if len(w) == len(u)])
    chosen = [(u, w) for u, w in zip(drafts, free, strict=True) if len(w) < len(u) and len(u) > 1]
    unit_of, offsets, count = _number_units(label, [u for u, _ in chosen])
    coupled = Coupled(trace, unit_of, offsets, count)
    summed = np.zeros(int(label.max(initial=-1)) + 1, np.bool_)
    summed[trace.summed] = True
    groups = tuple(coupled.group(g, why, bool(summed[units].any())) for g, (units, why) in enumerate(chosen))
    return Grouping(groups, (*frozen, *_asleep(trace)), unit_of, tuple(offsets), count)


def _asleep(trace: Trace) -> tuple[Frozen, ...]:
    """Return the parts that run only in training and could not be looked at; they stay as they are."""
    return tuple(
        Frozen(
            a.module,
            a.width,
            f"runs only in training and fails on the example ({a.error}), so it goes on reading every channel: analyse "
            "with an example that it takes, or train the smaller network without it",
            FreezeKind.TRAINING_ONLY,
        )
        for a in trace.asleep
    )


def _written_together(trace: Trace) -> list[Atoms]:
    """Return the classes of every group: write vectors that share a class, in the order in which they show them."""
    label = trace.together
    vectors = [label[w.atoms[w.atoms >= 0]] for w in trace.writes]
    vectors = [v for v in vectors if len(v)]
    if not vectors:
        return []
    pairs = [np.stack([np.full(len(v), v[0]), v]) for v in vectors]
    together = classes(int(label.max()) + 1, pairs)
    found: dict[int, list[Atoms]] = {}
    for v in vectors:
        found.setdefault(int(together[v[0]]), []).append(v)
    first = np.empty(len(together), np.int64)
    return [_each_once(np.concatenate(parts), first) for parts in found.values()]


def _each_once(units: Atoms, first: Atoms) -> Atoms:
    """Return units without repetition, in the order in which they show; `first` is room for a number for each.

    >>> _each_once(np.array([4, 1, 4, 0]), np.empty(5, np.int64)).tolist()
    [4, 1, 0]
    """
    places = np.arange(len(units))
    first[units[::-1]] = places[::-1]  # of several the last counts, which is the first to show
    found: Atoms = units[first[units] == places]
    return found


@dataclass(eq=False)
class _Reasons:
    """Why classes have to stay: the number of a reason for every class, or `FIXED` for those that may leave."""

    known: list[Reason]
    why: Indices

    def of(self, units: Atoms) -> dict[int, Reason]:
        """Return which of some units have to stay, by their place, and why."""
        found = self.why[units]
        return {int(i): self.known[found[i]] for i in np.flatnonzero(found >= 0)}


def _reasons(trace: Trace, residual: Residual) -> _Reasons:
    """Collect the reasons; of several the first counts."""
    label = trace.together
    known = [*(f.why for f in trace.freezes), RESIDUAL_STREAM]
    why = np.full(int(label.max(initial=-1)) + 1, FIXED)
    if residual != "joint":
        why[trace.summed] = len(known) - 1
    for number, freeze in reversed(list(enumerate(trace.freezes))):
        why[label[freeze.atoms]] = number
    return _Reasons(known, why)


def _keep_pieces(trace: Trace, drafts: list[Atoms], reasons: _Reasons) -> None:
    """Keep one channel of every layer and of every part of a split that is only a part of its group.

    A group as a whole never becomes empty, but a layer whose output is padded and added to a wider one might.
    """
    label, why = trace.together, reasons.why
    home = np.full(len(why), FIXED)
    width = np.array([len(units) for units in drafts], np.int64)
    for g, units in enumerate(drafts):
        home[units] = g
    layers = (label[a.first : a.first + a.size] for a in trace.axes)
    pieces = (label[atoms] for atoms in trace.pieces)
    seen: set[bytes] = set()
    for parts, reason in ((pieces, LAST_OF_SPLIT), (layers, LAST_OF_LAYER)):
        reasons.known.append(reason)
        for part in parts:
            key = part.tobytes()
            if not key or key in seen:
                continue
            seen.add(key)
            at = home[part]
            if why[part].max() >= 0 or at.min() == FIXED:
                continue
            counts = np.bincount(home[np.unique(part)])
            if not (counts == width[: len(counts)]).any():
                why[part[0]] = len(reasons.known) - 1


def _frozen(trace: Trace, whole: list[tuple[Atoms, dict[int, Reason]]]) -> tuple[Frozen, ...]:
    """Return the groups that stay whole, each by the name of its first producer."""
    label = trace.together
    first = np.full(int(label.max(initial=-1)) + 1, len(trace.writes))
    for i, write in reversed(list(enumerate(trace.writes))):
        first[label[write.atoms[write.atoms >= 0]]] = i
    return tuple(
        Frozen(
            trace.ops[trace.writes[int(first[units].min())].op].module,
            len(units),
            "; ".join(dict.fromkeys(reason.text for reason in why.values())),
            next(iter(why.values())).kind,
        )
        for units, why in whole
    )


def _number_units(label: Atoms, groups: list[Atoms]) -> tuple[Atoms, list[int], int]:
    number = np.full(int(label.max()) + 1 if len(label) else 0, FIXED, np.int64)
    offsets, count = [], 0
    for units in groups:
        offsets.append(count)
        number[units] = np.arange(count, count + len(units))
        count += len(units)
    return (number[label] if len(label) else label), offsets, count


class Coupled:
    """What belongs to each group: every vector of labels is looked at once and handed to its groups."""

    def __init__(self, trace: Trace, unit_of: Atoms, offsets: list[int], count: int) -> None:
        self.trace, self.unit_of = trace, unit_of
        self.offsets, self.ends, self.unit_count = offsets, [*offsets[1:], count], count
        self.unit_or_fixed = np.append(unit_of, FIXED)  # CONSTANT = -1 finds the last entry
        self.group_of = np.repeat(np.arange(len(offsets)), np.diff([*offsets, count]))

    @cached_property
    def axes(self) -> dict[int, list[tuple[Axis, Indices]]]:
        """The axes of parameters and buffers that hold channels of each group, with their units."""
        return self._sort((a, np.arange(a.first, a.first + a.size)) for a in self.trace.axes)

    @cached_property
    def writes(self) -> dict[int, list[tuple[Write, Indices]]]:
        """The operators that write channels of each group."""
        return self._sort((w, w.atoms) for w in self.trace.writes)

    @cached_property
    def reads(self) -> dict[int, list[tuple[Read, Indices]]]:
        """The operators that read channels of each group."""
        return self._sort((r, r.atoms) for r in self.trace.reads)

    @cached_property
    def norms(self) -> dict[int, list[BatchNorm]]:
        """The batch norms that normalise each group as a whole, all units alike."""
        found: dict[int, list[BatchNorm]] = {}
        for norm in self.trace.norms:
            for g, places, units in self._parts(norm.atoms):
                positions = _positions(places, units, self.ends[g] - self.offsets[g])
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
        units = self.unit_or_fixed[atoms]
        last = int(units.max(initial=FIXED))
        if last == FIXED:
            return
        g = int(self.group_of[last])
        start, end = self.offsets[g], self.ends[g]
        here = np.arange(end - start)
        if len(units) == len(here) and (units == here + start).all():  # the usual case
            yield g, here, here
            return
        order = np.argsort(units, kind="stable")
        in_order = units[order]
        bounds = np.searchsorted(in_order, [*self.offsets, self.unit_count])
        for g in np.flatnonzero(np.diff(bounds)).tolist():
            inside = slice(bounds[g], bounds[g + 1])
            yield g, order[inside], in_order[inside] - self.offsets[g]

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
    def producers(self) -> dict[int, dict[str, None]]:
        """The modules that write channels of each group, as an ordered set."""
        found: dict[int, dict[str, None]] = {}
        for write in self.trace.writes:
            for g, _, _ in self._parts(write.atoms):
                found.setdefault(g, {})[self.trace.ops[write.op].module] = None
        return found

    @cached_property
    def through(self) -> dict[int, dict[tuple[str, str], None]]:
        """The operators that the channels of each group pass, as an ordered set."""
        found: dict[int, dict[tuple[str, str], None]] = {}
        for op, atoms in self._passed():
            units = self.unit_or_fixed[atoms]
            units = units[units >= 0]
            if len(units):
                low, high = self.group_of[units.min()], self.group_of[units.max()]
                for g in [low] if low == high else np.unique(self.group_of[units]):
                    found.setdefault(int(g), {})[op.name, op.module] = None
        return found

    def _passed(self) -> Iterator[tuple[Op, Atoms]]:
        """Yield the operators that neither read nor write, with the labels they pass on."""
        ends = {r.op for r in self.trace.reads} | {w.op for w in self.trace.writes}
        for i, op in enumerate(self.trace.ops):
            for value in op.outputs[:1] if i not in ends else ():
                for factor in self.trace.values[value].labels:
                    yield op, factor.numpy().reshape(-1)

    def group(self, g: int, fixed: Mapping[int, Reason], residual: bool) -> ChannelGroup:
        """Return a group; most that is coupled to it is looked up when it is asked for."""
        producers = tuple(self.producers[g])
        return ChannelGroup(
            name=producers[0],
            width=self.ends[g] - self.offsets[g],
            producers=producers,
            batch_norms=tuple(self.norms.get(g, ())),
            fixed={unit: why.text for unit, why in fixed.items()},
            residual=residual,
            number=g,
            coupled=self,
        )

    def consumer(self, read: Read, units: Indices) -> Consumer:
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
