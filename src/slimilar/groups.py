"""Channel groups: which parameter axes share channels, who writes them, what lies between, who reads them.

Plain data made from a `Trace`. A *unit* is a set of channels that leave together (usually one channel: its filter,
its batch-norm entries, its kernels in every reader). A *group* is the set of units that one layer writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    label = trace.together
    drafts = _written_together(trace)
    reasons = _reasons(trace, residual)
    _keep_pieces(trace, drafts, reasons)
    free = [reasons.of(units) for units in drafts]
    frozen = tuple(
        _frozen(trace, units, why) for units, why in zip(drafts, free, strict=True) if len(why) == len(units)
    )
    chosen = [(u, w) for u, w in zip(drafts, free, strict=True) if len(w) < len(u) and len(u) > 1]
    unit_of, offsets, count = _number_units(label, [u for u, _ in chosen])
    builder = _Builder(trace, unit_of, offsets, count)
    groups = tuple(
        builder.group(g, why, bool(np.isin(units, trace.summed).any()))
        for g, (units, why) in enumerate(chosen)
    )
    return Grouping(groups, frozen, unit_of, tuple(offsets), count)


def _written_together(trace: Trace) -> list[Atoms]:
    """Return the classes of every group: write vectors that share a class, in the order in which they show them."""
    label = trace.together
    vectors = [label[w.atoms[w.atoms >= 0]] for w in trace.writes]
    vectors = [v for v in vectors if len(v)]
    if not vectors:
        return []
    pairs = [np.stack([np.full(len(v), v[0]), v]) for v in vectors]
    together = classes(int(label.max()) + 1, pairs)
    found: dict[int, list[int]] = {}
    for v in vectors:
        found.setdefault(int(together[v[0]]), []).extend(v.tolist())
    return [np.array(list(dict.fromkeys(units)), np.int64) for units in found.values()]


@dataclass(eq=False)
class _Reasons:
    """Why classes have to stay: the number of a sentence for every class, or `FIXED` for those that may leave."""

    words: list[str]
    why: Indices

    def of(self, units: Atoms) -> dict[int, str]:
        """Return which of some units have to stay, by their place, and why."""
        found = self.why[units]
        return {int(i): self.words[found[i]] for i in np.flatnonzero(found >= 0)}


def _reasons(trace: Trace, residual: Residual) -> _Reasons:
    """Collect the reasons; of several the first counts."""
    label = trace.together
    words = [*(f.reason for f in trace.freezes), 'residual stream (pruned by residual="joint")']
    why = np.full(int(label.max(initial=-1)) + 1, FIXED)
    if residual != "joint":
        why[trace.summed] = len(words) - 1
    for number, freeze in reversed(list(enumerate(trace.freezes))):
        why[label[freeze.atoms]] = number
    return _Reasons(words, why)


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
    for parts, reason in ((pieces, "the last of its part of a split"), (layers, "the last of its layer")):
        reasons.words.append(reason)
        for part in parts:
            if not len(part) or why[part].max() >= 0 or home[part].min() == FIXED:
                continue
            counts = np.bincount(home[np.unique(part)])
            if not (counts == width[: len(counts)]).any():
                why[part[0]] = len(reasons.words) - 1


def _frozen(trace: Trace, units: Atoms, why: Mapping[int, str]) -> Frozen:
    wanted = np.zeros(int(trace.together.max()) + 2, np.bool_)  # CONSTANT = -1 finds the last entry
    wanted[units] = True
    label = np.append(trace.together, len(wanted) - 1)
    writer = next(w for w in trace.writes if wanted[label[w.atoms]].any())
    return Frozen(trace.ops[writer.op].module, len(units), "; ".join(dict.fromkeys(why.values())))


def _number_units(label: Atoms, groups: list[Atoms]) -> tuple[Atoms, list[int], int]:
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
        self.offsets, self.ends, self.unit_count = offsets, [*offsets[1:], count], count
        self.unit_or_fixed = np.append(unit_of, FIXED)  # CONSTANT = -1 finds the last entry
        self.group_of = np.repeat(np.arange(len(offsets)), np.diff([*offsets, count]))
        self.home = np.empty(
            (2, trace.atom_count), np.int64
        )  # atom -> which axis it belongs to, and its index there
        for i, a in enumerate(trace.axes):
            self.home[0, a.first : a.first + a.size] = i
            self.home[1, a.first : a.first + a.size] = np.arange(a.size)
        self.axes = self._sort((a, np.arange(a.first, a.first + a.size)) for a in trace.axes)
        self.writes = self._sort((w, w.atoms) for w in trace.writes)
        self.norms = self._sort((n, n.atoms) for n in trace.norms)
        self.reads = self._sort((r, r.atoms) for r in trace.reads)
        self.through = self._through()

    def _sort(self, vectors: Iterable[tuple[T, Atoms]]) -> dict[int, list[tuple[T, Indices]]]:
        """Return, for every group, the items that touch it, each with its vector as units of that group."""
        found: dict[int, list[tuple[T, Indices]]] = {}
        unit_of = self.unit_or_fixed
        for item, atoms in vectors:
            units = unit_of[atoms]
            last = int(units.max(initial=FIXED))
            if last == FIXED:
                continue
            g = int(self.group_of[last])
            if units.min() >= self.offsets[g]:  # the usual case: all of one group
                found.setdefault(g, []).append((item, units - self.offsets[g]))
                continue
            order = np.argsort(units, kind="stable")
            bounds = np.searchsorted(units[order], [*self.offsets, self.unit_count])
            for g in np.flatnonzero(np.diff(bounds)).tolist():
                inside, mine = order[bounds[g] : bounds[g + 1]], np.full(len(units), FIXED)
                mine[inside] = units[inside] - self.offsets[g]
                found.setdefault(g, []).append((item, mine))
        return found

    def _through(self) -> dict[int, dict[tuple[str, str], None]]:
        """Return, for every group, the operators that its channels pass, as an ordered set."""
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
            through=tuple(self.through.get(g, ())),
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
    order, counts = _in_order(units, width)
    if counts.min() == counts.max():
        return tuple(order.reshape(width, -1))
    ends = np.cumsum(counts).tolist()
    return tuple(order[a:b] for a, b in pairwise([0, *ends]))


def _positions(units: Indices, width: int) -> Indices | None:
    """Return for every unit its positions in a vector, where all have equally many; else None."""
    order, counts = _in_order(units, width)
    return order.reshape(width, -1) if 0 < counts.min() == counts.max() else None


def _in_order(units: Indices, width: int) -> tuple[Indices, Indices]:
    """Return the positions of a vector that hold a unit, by unit, and how many hold each."""
    order = np.argsort(units, kind="stable")
    counts = np.bincount(units[units >= 0], minlength=width)
    return order[len(units) - int(counts.sum()) :], counts


def _batch_norm(norm: Norm, positions: Indices) -> BatchNorm:
    return BatchNorm(norm.module, *norm.tensors, norm.eps, positions, norm.op)
