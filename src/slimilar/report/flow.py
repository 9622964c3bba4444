"""The network as a drawing: layers and joins in execution order, each in a lane.

A join is an operator that combines two tensors (a residual addition, a concatenation, a gate). Operators that neither
produce channels nor combine tensors are left out, so that the drawing of ResNet-50 has 71 rows instead of 229.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slimilar.graph.groups import Grouping, Indices
from slimilar.graph.records import Op, Trace, Value
from slimilar.planning.plan import Plan

_JOINS = {"add": "add", "sub": "add", "cat": "concat", "concat": "concat", "stack": "concat", "mul": "gate"}
_KINDS = {
    "convolution": "conv",
    "addmm": "linear",
    "mm": "linear",
    "linear": "linear",
    "native_batch_norm": "select",
}


@dataclass(frozen=True, eq=False)
class Row:
    """One line of the drawing. `inputs` are the rows that produce its inputs."""

    kind: str  # input, conv, linear, select, other; add, concat, gate, join; output
    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...] = ()
    units: Indices | None = None  # the units that a layer produces, numbered over all groups
    reason: str | None = None  # why none of its channels can be removed
    lane: int = 0


def flow(plan: Plan) -> list[Row]:
    """Return the rows of a plan's network, with their lanes."""
    return in_lanes(_Walk(plan).rows)


class _Walk:
    """Walk through the trace once and record which row produces every value."""

    def __init__(self, plan: Plan) -> None:
        self.trace: Trace = plan.structure.trace
        self.grouping: Grouping = plan.structure.grouping
        self.reasons = _StayReasons(plan)
        self.writes = {w.op: w.atoms for w in self.trace.writes}
        self.rows: list[Row] = []
        self.origin: dict[int, int] = {}
        self.concatenated: dict[tuple[int, ...], int] = {}
        for i, op in enumerate(self.trace.ops):
            self._visit(i, op)
        ends = tuple(dict.fromkeys(self.origin[v] for v in self.trace.outputs if v in self.origin))
        self.rows.append(Row("output", "output", ends))

    def _visit(self, i: int, op: Op) -> None:
        inputs = self._inputs(op)
        if i in self.writes and inputs:
            row = self._layer(op, self.writes[i], inputs)
        elif len(inputs) > 1:
            row = self._join(op, inputs)
        elif inputs:
            row = inputs[0]
        else:
            return
        self.origin.update(dict.fromkeys(op.outputs, row))

    def _inputs(self, op: Op) -> tuple[int, ...]:
        """Return the rows behind the inputs that depend on the model's input."""
        dynamic = [v for v in op.inputs if self.trace.values[v].dynamic]
        for v in dynamic:
            if v not in self.origin:
                self.origin[v] = self._add(Row("input", "input", (), self.trace.values[v].shape))
        return tuple(dict.fromkeys(self.origin[v] for v in dynamic))

    def _add(self, row: Row) -> int:
        self.rows.append(row)
        return len(self.rows) - 1

    def _layer(self, op: Op, atoms: Indices, inputs: tuple[int, ...]) -> int:
        units = np.where(atoms >= 0, self.grouping.unit_of[atoms], -1)
        kind = _KINDS.get(_short(op), "other")
        reason = self.reasons.of(atoms, units)
        return self._add(Row(kind, op.module or _short(op), inputs, self._shape(op), units, reason))

    def _join(self, op: Op, inputs: tuple[int, ...]) -> int:
        kind = _JOINS.get(_short(op), "join")
        if kind == "concat":
            self.concatenated.setdefault(inputs, len(self.rows))
            inputs = self._grown(inputs)
        return self._add(Row(kind, op.module or _short(op), inputs, self._shape(op)))

    def _grown(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Draw a concatenation that extends an earlier one (DenseNet) as that one plus the new inputs."""
        for length in range(len(inputs) - 1, 1, -1):
            if inputs[:length] in self.concatenated:
                return (self.concatenated[inputs[:length]], *inputs[length:])
        return inputs

    def _shape(self, op: Op) -> tuple[int, ...]:
        value: Value = self.trace.values[op.outputs[0]]
        return value.shape


class _StayReasons:
    """Why channels cannot be removed, for all producers of a frozen group (it is named after one of them)."""

    def __init__(self, plan: Plan) -> None:
        trace, grouping = plan.structure.trace, plan.structure.grouping
        self.label = trace.together
        self.ends = np.array([*grouping.offsets[1:], grouping.unit_count])
        stated: Mapping[str, str] = {f.name: f.reason for f in plan.frozen}
        open_groups = {id(g) for g in plan.groups}
        self.by_group = [
            None if id(g) in open_groups else stated.get(g.name, "excluded") for g in grouping.groups
        ]
        self.by_class: dict[int, str] = {}
        for write in trace.writes:
            reason = stated.get(trace.ops[write.op].module)
            if reason is not None:
                for c in np.unique(self.label[write.atoms[write.atoms >= 0]]).tolist():
                    self.by_class.setdefault(c, reason)

    def of(self, atoms: Indices, units: Indices) -> str | None:
        """Return why none of these channels can be removed, or None if some can."""
        numbered = units[units >= 0]
        groups = np.unique(np.searchsorted(self.ends, numbered, side="right")).tolist()
        found_reasons = [self.by_group[g] for g in groups]
        if found_reasons:
            return None if None in found_reasons else found_reasons[0]
        found = [self.by_class[c] for c in self.label[atoms[atoms >= 0]].tolist() if c in self.by_class]
        return found[0] if found else "cannot be removed"


def _short(op: Op) -> str:
    """Return `add` for `aten.add_`."""
    return op.name.rpartition(".")[2].rstrip("_")


def in_lanes(rows: Sequence[Row]) -> list[Row]:
    """Give every row a lane: a tensor keeps its lane until its last consumer.

    >>> block = [Row("conv", "a", ()), Row("conv", "b", (0,)), Row("add", "c", (1, 0)), Row("output", "d", (2,))]
    >>> [row.lane for row in in_lanes(block)]
    [0, 1, 0, 0]
    """
    last = list(range(len(rows)))
    for i, row in enumerate(rows):
        for source in row.inputs:
            last[source] = i
    holder: dict[int, int] = {}  # lane -> the row whose stream runs in it
    placed = []
    for i, row in enumerate(rows):
        ending = [lane for lane, source in holder.items() if source in row.inputs and last[source] == i]
        free = next(n for n in range(len(holder) + 1) if n not in holder)
        lane = min(ending, default=free)
        for done in ending:
            del holder[done]
        if last[i] > i:
            holder[lane] = i
        placed.append(replace(row, lane=lane))
    return placed
