"""Channel groups: which parameter axes share channels, who writes them, what lies between, who reads them.

Plain data made from a `Trace`. A *unit* is a set of channels that leave together (usually one channel: its filter,
its batch-norm entries, its kernels in every reader). A *group* is the set of units that one layer writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from slimilar.labels import Atoms, classes
from slimilar.trace import Norm, Op, Read, Trace

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
class Reader:
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
    """Channels that one layer writes, and all that is coupled to them."""

    name: str
    width: int
    members: tuple[Member, ...]
    writers: tuple[str, ...]
    through: tuple[tuple[str, str], ...]  # per-channel functions on the way: (operator, module), in order
    batch_norms: tuple[BatchNorm, ...]
    readers: tuple[Reader, ...]
    fixed: Mapping[int, str]  # units that have to stay, and why
    channels: tuple[Indices, ...]  # for each unit, its output channels in the first writer
    residual: bool  # a stream that residual additions join

    def __repr__(self) -> str:
        norms = ", ".join(b.module for b in self.batch_norms) or "none"
        return f"ChannelGroup({self.name}: {self.width} channels, batch norms: {norms}, {len(self.members)} members)"


@dataclass(frozen=True)
class Frozen:
    """Channels that cannot leave, and why."""

    name: str
    width: int
    reason: str


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
    label = classes(trace.atom_count, [trace.ties, trace.sums])
    partition = _written_together(trace, label)
    reasons = _frozen_classes(trace, label, residual)
    summed = summed_classes(trace, label)
    drafts = [_units(group, label) for group in partition]
    _keep_pieces(trace, label, drafts, reasons)
    free = [[reasons.get(c) for c in units] for units in drafts]
    frozen = tuple(
        _frozen(trace, units, why, label)
        for units, why in zip(drafts, free, strict=True)
        if all(why) and units
    )
    chosen = [(u, w) for u, w in zip(drafts, free, strict=True) if not all(w) and len(u) > 1]
    unit_of, offsets, count = _number_units(label, [u for u, _ in chosen])
    builder = _Builder(trace, unit_of, offsets, count)
    groups = tuple(
        builder.group(g, {i: w for i, w in enumerate(why) if w}, bool(summed & set(units)))
        for g, (units, why) in enumerate(chosen)
    )
    return Grouping(groups, frozen, unit_of, tuple(offsets), count)


def _written_together(trace: Trace, label: Atoms) -> list[list[Atoms]]:
    """Return the write vectors, as classes, put together where they share a class."""
    vectors = [label[w.atoms[w.atoms >= 0]] for w in trace.writes]
    vectors = [v for v in vectors if len(v)]
    if not vectors:
        return []
    count = int(label.max()) + 1
    pairs = [np.stack([np.repeat(v[:1], len(v)), v]) for v in vectors]
    together = classes(count, pairs)
    found: dict[int, list[Atoms]] = {}
    for v in vectors:
        found.setdefault(int(together[v[0]]), []).append(v)
    return list(found.values())


def _units(vectors: list[Atoms], label: Atoms) -> list[int]:
    """Return the classes of a group in the order in which its writers first show them."""
    return list(dict.fromkeys(int(c) for v in vectors for c in v))


def summed_classes(trace: Trace, label: Atoms) -> set[int]:
    """Return the classes that residual additions join: what they add was not one channel before."""
    alone = classes(trace.atom_count, [trace.ties])
    a, b = trace.sums
    return {int(c) for c in label[a[alone[a] != alone[b]]]}


def _frozen_classes(trace: Trace, label: Atoms, residual: Residual) -> dict[int, str]:
    reasons: dict[int, str] = {}
    for freeze in trace.freezes:
        for c in np.unique(label[freeze.atoms]):
            reasons.setdefault(int(c), freeze.reason)
    if residual != "joint":
        for c in summed_classes(trace, label):
            reasons.setdefault(c, 'residual stream (pruned by residual="joint")')
    return reasons


def _keep_pieces(trace: Trace, label: Atoms, drafts: list[list[int]], reasons: dict[int, str]) -> None:
    """Keep one channel of every layer and of every part of a split that is only a part of its group.

    A group as a whole never becomes empty, but a layer whose output is padded and added to a wider one might.
    """
    home, width = (
        np.full(int(label.max(initial=-1)) + 1, FIXED),
        np.array([len(units) for units in drafts], np.int64),
    )
    for g, units in enumerate(drafts):
        home[units] = g
    stays = np.zeros(len(home), np.bool_)
    stays[list(reasons)] = True
    layers = [np.arange(a.first, a.first + a.size) for a in trace.axes]
    for part, reason in (
        (trace.pieces, "the last of its part of a split"),
        (layers, "the last of its layer"),
    ):
        for atoms in part:
            found = np.unique(label[atoms])
            if not len(found) or stays[found].any() or (home[found] == FIXED).any():
                continue
            groups, counts = np.unique(home[found], return_counts=True)
            if (counts < width[groups]).all():
                reasons[int(label[atoms[0]])] = reason
                stays[label[atoms[0]]] = True


def _frozen(trace: Trace, units: list[int], why: list[str | None], label: Atoms) -> Frozen:
    wanted = set(units)
    writer = next(w for w in trace.writes if wanted & {int(c) for c in label[w.atoms[w.atoms >= 0]]})
    reasons = list(dict.fromkeys(w for w in why if w))
    return Frozen(trace.ops[writer.op].module, len(units), "; ".join(reasons))


def _number_units(label: Atoms, groups: list[list[int]]) -> tuple[Atoms, list[int], int]:
    number = np.full(int(label.max()) + 1 if len(label) else 0, FIXED, np.int64)
    offsets, count = [], 0
    for units in groups:
        offsets.append(count)
        number[units] = np.arange(count, count + len(units))
        count += len(units)
    return (number[label] if len(label) else label), offsets, count


class _Builder:
    """Collect what belongs to each group: every vector of labels is looked at once and handed to its groups."""

    def __init__(self, trace: Trace, unit_of: Atoms, offsets: list[int], count: int) -> None:
        self.trace, self.unit_of = trace, unit_of
        self.offsets, self.ends = offsets, [*offsets[1:], count]
        self.home = np.empty(
            (2, trace.atom_count), np.int64
        )  # atom -> which axis it belongs to, and its index there
        for i, a in enumerate(trace.axes):
            self.home[:, a.first : a.first + a.size] = np.full(a.size, i), np.arange(a.size)
        self.axes = self._sort((a, np.arange(a.first, a.first + a.size)) for a in trace.axes)
        self.writes = self._sort((w, w.atoms) for w in trace.writes)
        self.norms = self._sort((n, n.atoms) for n in trace.norms)
        self.reads = self._sort((r, r.atoms) for r in trace.reads)
        self.through = self._sort(self._passed())

    def _sort(self, vectors: Iterable[tuple[T, Atoms]]) -> dict[int, list[tuple[T, Indices]]]:
        """Return, for every group, the items that touch it, each with its vector as units of that group."""
        found: dict[int, list[tuple[T, Indices]]] = {}
        for item, atoms in vectors:
            units = np.where(atoms >= 0, self.unit_of[atoms], FIXED)
            touched = np.unique(np.searchsorted(self.offsets, units[units >= 0], side="right") - 1)
            for g in touched.tolist():
                inside = (units >= self.offsets[g]) & (units < self.ends[g])
                found.setdefault(g, []).append((item, np.where(inside, units - self.offsets[g], FIXED)))
        return found

    def _passed(self) -> Iterator[tuple[Op, Atoms]]:
        """Yield the operators that neither read nor write, with the labels they pass on."""
        ends = {r.op for r in self.trace.reads} | {w.op for w in self.trace.writes}
        for i, op in enumerate(self.trace.ops):
            for value in op.outputs[:1] if i not in ends else ():
                for factor in self.trace.values[value].labels:
                    yield op, factor.reshape(-1).numpy()

    def group(self, g: int, fixed: Mapping[int, str], residual: bool) -> ChannelGroup:
        width = self.ends[g] - self.offsets[g]
        first = self.writes[g][0][1]
        writers = tuple(dict.fromkeys(self.trace.ops[w.op].module for w, _ in self.writes[g]))
        norms = [(n, _positions(units, width)) for n, units in self.norms.get(g, [])]
        return ChannelGroup(
            name=writers[0],
            width=width,
            members=tuple(Member(a.tensor, a.axis, units) for a, units in self.axes[g]),
            writers=writers,
            through=tuple(dict.fromkeys((op.name, op.module) for op, _ in self.through.get(g, []))),
            batch_norms=tuple(_batch_norm(n, places) for n, places in norms if places is not None),
            readers=tuple(self._reader(r, units) for r, units in self.reads.get(g, [])),
            fixed=dict(fixed),
            channels=_places(first, width),
            residual=residual,
        )

    def _reader(self, read: Read, units: Indices) -> Reader:
        axis = self.trace.axes[int(self.home[0, read.weight[0]])]
        index = self.home[1, read.weight]
        return Reader(
            self.trace.ops[read.op].module, read.op, read.axis, units, axis.tensor, axis.axis, index
        )


def _places(units: Indices, width: int) -> tuple[Indices, ...]:
    """Return where each unit stands in a vector."""
    order = np.argsort(units, kind="stable")
    counts = np.bincount(units[units >= 0], minlength=width)
    return tuple(np.split(order[len(units) - int(counts.sum()) :], np.cumsum(counts)[:-1]))


def _positions(units: Indices, width: int) -> Indices | None:
    """Return for every unit its positions in a vector, where all have equally many; else None."""
    counts = np.bincount(units[units >= 0], minlength=width)
    if counts.min() == 0 or counts.min() != counts.max():
        return None
    order = np.argsort(units, kind="stable")
    return order[len(units) - int(counts.sum()) :].reshape(width, -1)


def _batch_norm(norm: Norm, positions: Indices) -> BatchNorm:
    return BatchNorm(norm.module, *norm.tensors, norm.eps, positions, norm.op)
