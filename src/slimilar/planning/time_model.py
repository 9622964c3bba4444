"""How long a network takes, as a function of its widths: a table of measured times for every layer.

The time of a convolution is no product of its widths, so tables hold what was measured at some input and output widths
and interpolate between them. What lies between the layers is left to the measurement of whole networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimilar.graph import rules as ops
from slimilar.graph.groups import FIXED
from slimilar.graph.labels import axes_of
from slimilar.graph.records import Op, Ref, Value
from slimilar.planning.plan import Plan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LayerShape:
    """What decides on a layer's time beside its widths. A linear layer is a convolution of one pixel."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int  # 0: depthwise, as many as there are channels
    size: tuple[int, ...]  # batch, then pixels
    inputs: int  # widths of the original
    outputs: int


@dataclass(frozen=True, eq=False)
class TimeTable:
    """Milliseconds of a layer over its input widths (rows) and output widths (columns), both ascending.

    >>> table = TimeTable(np.array([0.0, 10.0]), np.array([0.0, 10.0]), np.array([[0.0, 0.0], [0.0, 100.0]]))
    >>> table.at(5, 10), table.at(5, 5)
    (50.0, 25.0)
    """

    inputs: Floats
    outputs: Floats
    milliseconds: Floats

    def at(self, inputs: float, outputs: float) -> float:
        """Return the time at some widths, interpolated; beyond the table, that of its edge."""
        across = [float(np.interp(outputs, self.outputs, row)) for row in self.milliseconds]
        return float(np.interp(inputs, self.inputs, across))


LayerTimes = Callable[[Sequence[LayerShape]], Mapping[LayerShape, TimeTable]]


@dataclass(frozen=True, eq=False)
class TimedLayer:
    """A layer with the channels that it reads and writes, numbered over all groups; FIXED always stays."""

    module: str
    shape: LayerShape
    inputs: Ints
    outputs: Ints


def timed_layers(plan: Plan, batch: int | None = None) -> list[TimedLayer]:
    """Return the convolutions and linear layers of a plan's network, for a batch size or for the example's."""
    found = _layers(plan)
    if batch is None:
        return found
    return [replace(x, shape=replace(x.shape, size=(batch, *x.shape.size[1:]))) for x in found]


def _layers(plan: Plan) -> list[TimedLayer]:
    found = []
    for op in plan.structure.trace.ops:
        rule = ops.RULES.get(op.name)
        if rule is ops.convolution and not op.arguments.get("transposed"):
            found.append(_convolution(plan, op))
        elif rule is ops.contraction:
            found += _linear(plan, op)
    return found


def _value(plan: Plan, op: Op, name: str) -> Value:
    ref = op.arguments[name]
    assert isinstance(ref, Ref)
    return plan.structure.trace.values[ref.value]


def _channels(plan: Plan, value: Value, axis: int) -> Ints:
    """Return the channels on one axis of a value, as numbers over all groups."""
    units = np.append(plan.structure.grouping.unit_of, FIXED)  # CONSTANT = -1 finds the last entry
    for labels in value.labels:
        if axes_of(labels) == (axis,):
            found: Ints = units[labels.numpy().reshape(-1)]
            return found
    return np.full(value.shape[axis], FIXED)


def _convolution(plan: Plan, op: Op) -> TimedLayer:
    x, weight = _value(plan, op, "input"), _value(plan, op, "weight")
    out = plan.structure.trace.values[op.outputs[0]]
    given: dict[str, Any] = {n: tuple(op.arguments[n]) for n in ("stride", "padding", "dilation")}
    groups = int(op.arguments["groups"])
    depthwise = groups > 1 and groups == x.shape[1]
    inputs, outputs = _channels(plan, x, 1), _channels(plan, out, 1)
    shape = LayerShape(
        tuple(weight.shape[2:]), groups=0 if depthwise else groups, size=(x.shape[0], *x.shape[2:]),
        inputs=len(inputs), outputs=len(outputs), **given,
    )  # fmt: skip
    return TimedLayer(op.module, shape, inputs, outputs)


def _linear(plan: Plan, op: Op) -> list[TimedLayer]:
    """Return a product of activations with a matrix, if that is what a contraction is."""
    held = [plan.structure.trace.values[i] for i in op.inputs]
    last = [v for v in held if len(v.shape) >= 2][:1]
    out = plan.structure.trace.values[op.outputs[0]]
    if not last or len(out.shape) != 2:
        return []
    inputs, outputs = _channels(plan, last[0], len(last[0].shape) - 1), _channels(plan, out, 1)
    one = (1, 1)
    shape = LayerShape(one, one, (0, 0), one, 1, (out.shape[0], 1, 1), len(inputs), len(outputs))
    return [TimedLayer(op.module, shape, inputs, outputs)]


class TimeModel:
    """The time of a plan's network after so many steps of each group: the sum over its layers."""

    def __init__(
        self, plan: Plan, layers: Sequence[TimedLayer], tables: Mapping[LayerShape, TimeTable]
    ) -> None:
        self.layers = layers
        self._tables = [tables[layer.shape] for layer in layers]
        spans = [(start, start + group.width) for start, group in zip(plan.starts, plan.groups, strict=True)]
        self._reads = [_shares(layer.inputs, spans) for layer in layers]
        self._writes = [_shares(layer.outputs, spans) for layer in layers]
        self._widths = [group.width for group in plan.groups]
        self.in_front = _in_front(plan)

    def settled(self, steps: Sequence[int]) -> list[int]:
        """Return the steps of all groups, if those in front of a branch that goes altogether go with it."""
        found = list(steps)
        for g, others in self.in_front.items():
            if steps[g] == self._widths[g]:
                for other in others:
                    found[other] = self._widths[other]
        return found

    def layer(self, i: int, steps: Sequence[int]) -> float:
        """Return the milliseconds of one layer, after settled steps."""
        widths = [
            len(units) - sum(times * steps[g] for g, times in shares.items())
            for units, shares in (
                (self.layers[i].inputs, self._reads[i]),
                (self.layers[i].outputs, self._writes[i]),
            )
        ]
        return self._tables[i].at(*widths) if min(widths) > 0 else 0.0

    def total(self, steps: Sequence[int]) -> float:
        """Return the milliseconds of all layers."""
        settled = self.settled(steps)
        return sum(self.layer(i, settled) for i in range(len(self.layers)))

    @cached_property
    def touched(self) -> dict[int, list[int]]:
        """The layers whose time a group's width decides on, by group; those in front of a branch go with it."""
        own: dict[int, set[int]] = {}
        for i, (reads, writes) in enumerate(zip(self._reads, self._writes, strict=True)):
            for g in {*reads, *writes}:
                own.setdefault(g, set()).add(i)
        return {
            g: sorted(layers.union(*(own.get(other, ()) for other in self.in_front.get(g, ()))))
            for g, layers in own.items()
        }


def _in_front(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the groups that may lose all channels, and those that then go with them, by their places in the plan."""
    if plan.min_channels:
        return {}
    place, offsets = {start: g for g, start in enumerate(plan.starts)}, plan.structure.grouping.offsets
    return {
        place[offsets[g]]: tuple(place[offsets[other]] for other in others if offsets[other] in place)
        for g, others in plan.structure.branches.items()
        if offsets[g] in place
    }


def _shares(units: Ints, spans: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Return how often a channel of each group occurs, on average, where it occurs."""
    found = {g: float(((units >= a) & (units < b)).sum()) / (b - a) for g, (a, b) in enumerate(spans)}
    return {g: times for g, times in found.items() if times}
