"""Follow the channels of a smaller copy: do they go where the original's go?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.graph import rules as ops
from slimilar.graph.groups import Grouping
from slimilar.graph.labels import Labels, axes_of, on_axis, side_by_side
from slimilar.graph.reasons import Reason
from slimilar.graph.records import Axis, Choices, Freeze, Op, Trace, Value
from slimilar.graph.tracer import Tracer
from slimilar.surgery.rewrite import Kept, atoms_kept, operate, operate_on_meta, surgery
from slimilar.utils.modules import switch_to_eval
from slimilar.utils.pytree import Example


class Mismatch(Exception):
    """The smaller model does not send its channels the way the original does."""

    def __init__(self, op: int, fact: str) -> None:
        super().__init__(fact)
        self.op, self.fact = op, fact
        self.kept: Kept | None = None  # what stayed when it was seen


@dataclass(frozen=True, eq=False)
class Structure:
    """What a model's channels are: a trace that holds at other widths, and its groups."""

    trace: Trace
    grouping: Grouping
    choices: Choices


@dataclass(frozen=True, eq=False)
class _Axes:
    """What stays of the axes of the original's parameters and buffers."""

    home: Mapping[tuple[str, int], Axis]
    stays: Kept  # for every atom

    def labels(self, name: str, shape: tuple[int, ...]) -> Labels:
        """Return the labels of a tensor of the smaller model."""
        found = []
        for axis, size in enumerate(shape):
            home = self.home.get((name, axis))
            if home is None or size < 2:
                continue
            atoms = home.first + np.flatnonzero(self.stays[home.first : home.first + home.size])
            if len(atoms) == size:
                found.append(on_axis(torch.from_numpy(atoms), axis, len(shape)))
        return tuple(found)


class _Held(Value):
    """A parameter or buffer of the smaller model, whose labels are found when a rule asks for them."""

    def __init__(self, shape: tuple[int, ...], name: str, axes: _Axes) -> None:
        vars(self).update(shape=shape, name=name, dynamic=False, uniform=False, axes=axes)

    axes: _Axes

    def __getattr__(self, attribute: str) -> Any:
        if attribute != "labels" or self.name is None:
            raise AttributeError(attribute)
        vars(self)["labels"] = found = self.axes.labels(self.name, self.shape)
        return found


class Follower(Tracer):
    """Trace a smaller model with the labels of the original, and stop where they go another way."""

    def __init__(self, small: nn.Module, structure: Structure, kept: Kept) -> None:
        original = structure.trace
        super().__init__(small, structure.choices, original.meta)
        self.original = original
        self.stays = np.append(
            atoms_kept(structure.grouping, kept), True
        )  # CONSTANT = -1 finds the last entry
        self._twins: dict[int, int] = {}  # value -> the original's
        self._small: dict[
            int, tuple[Tensor, Tensor | None]
        ] = {}  # id -> a factor, kept alive, and what stays of it
        self.together = original.together
        self._axes = _Axes({(a.tensor, a.axis): a for a in original.axes}, self.stays)

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        x, y = side_by_side(a, b)
        both = (x >= 0) & (y >= 0)
        if not np.array_equal(self.together[x[both]], self.together[y[both]]):
            raise Mismatch(len(self.ops), "other channels meet")

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Assumptions are what is being tested here, by where the labels arrive."""

    def original_groups(self, call: ops.Call) -> tuple[int, int]:
        index = len(self.ops)
        if index >= len(self.original.ops) or self.original.ops[index].name != call.name:
            return super().original_groups(call)
        expected = self.original.ops[index].arguments
        return int(expected["groups"]), self.original.values[expected["input"].value].shape[1]

    def freeze(self, labels: Labels, why: Reason) -> None:
        """What stays is settled already."""

    def frozen_so_far(self) -> list[Freeze]:
        return [f for f in self.original.freezes if f.op <= len(self.ops)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.index_select.default and self._watch.module in self.choices.select:
            out = func(*args)  # the selection that surgery put in front of a batch norm
            self._store(out, Value(tuple(out.shape), (), None, True, False))
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _expected(self, call: ops.Call) -> Op:
        """Return the original's operator at this place."""
        index = len(self.ops)
        expected = self.original.ops[index] if index < len(self.original.ops) else None
        if expected is None or expected.name != call.name:
            raise Mismatch(index, "other operators run")
        return expected

    def _meet(self, tensor: Tensor) -> int:
        name = self._names.get(id(tensor))
        if name is None:
            return super()._meet(tensor)
        return self._store(tensor, _Held(tuple(tensor.shape), name, self._axes))

    def _note(self, call: ops.Call, inputs: list[int], given: list[Any]) -> None:
        index, expected = len(self.ops), self._expected(call)
        spared = self._spared(call, inputs, given, expected)
        labels = ops.apply(self, call) if spared is None else spared
        if (
            spared is None
            and ops.is_pointwise(call.func)
            and _numbers(call.bound) != _numbers(expected.arguments)
        ):
            raise Mismatch(index, "a number in the code follows the width")
        self._record(call, inputs, given, labels)
        for mine, theirs in zip(self.ops[-1].outputs, expected.outputs, strict=True):
            self._twins[mine] = theirs
            if spared is None and not self._agree(
                self.values[mine].labels, self.original.values[theirs].labels
            ):
                raise Mismatch(index, "channels arrive elsewhere")

    def _spared(
        self, call: ops.Call, inputs: list[int], given: list[Any], expected: Op
    ) -> list[Labels] | None:
        """Spare the rule where nothing can go wrong: the operator does the same to the same tensors, made smaller."""
        if not self._same_call(call, inputs, given, expected):
            return None
        found = []
        for v in expected.outputs:
            factors = [self._shrunk(f) for f in self.original.values[v].labels]
            whole = tuple(f for f in factors if f is not None)
            if len(whole) < len(factors):
                return None
            found.append(whole)
        return found

    def _same_call(self, call: ops.Call, inputs: list[int], given: list[Any], expected: Op) -> bool:
        theirs, twins = self.original.values, self._twins
        return (
            call.func is expected.func
            and len(inputs) == len(expected.inputs)
            and tuple(call.kwargs) == expected.keywords
            and (
                (given == expected.given and ops.is_widthless(call))
                or (ops.is_depthwise(call.name, given, call.seen) and self._was_depthwise(given, expected))
            )
            and all(
                twins.get(i) == j if value.name is None else value.name == theirs[j].name
                for i, j, value in zip(inputs, expected.inputs, call.seen, strict=True)
            )
            and call.module not in self.choices.select
            and call.signature not in self.choices.stiff
        )

    def _was_depthwise(self, given: list[Any], expected: Op) -> bool:
        """Tell whether a convolution of every channel by itself was one, and the same but for their number."""
        seen = [self.original.values[j] for j in expected.inputs]
        return given[:-1] == expected.given[:-1] and ops.is_depthwise(expected.name, expected.given, seen)

    def _settle(self, labels: Labels) -> Labels:
        """Let a part of a split that has shrunk to one channel keep its label, for where it is put beside others."""
        wide = tuple(f for f in labels if f.numel() > 1)
        return wide or labels[:1]

    def _agree(self, mine: Labels, theirs: Labels) -> bool:
        mine = tuple(f for f in mine if f.numel() > 1)
        wanted = [w for f in theirs if (w := self._shrunk(f)) is None or w.numel() > 1]
        return len(mine) == len(wanted) and all(
            w is not None and (m is w or (m.shape == w.shape and bool((m == w).all())))
            for m, w in zip(mine, wanted, strict=True)
        )

    def _shrunk(self, factor: Tensor) -> Tensor | None:
        """Return a factor of the original without what was removed; None if that is not a block any more."""
        if id(factor) not in self._small:
            self._small[id(factor)] = factor, self._without_removed(factor)
        return self._small[id(factor)][1]

    def _without_removed(self, factor: Tensor) -> Tensor | None:
        atoms = factor.numpy()
        keep = self.stays[atoms]
        if keep.all():
            return factor
        if len(axes := axes_of(factor)) == 1:
            shape = [-1 if a in axes else 1 for a in range(factor.ndim)]
            return torch.from_numpy(atoms[keep].reshape(shape))
        along = [
            np.flatnonzero(keep.any(axis=tuple(a for a in range(atoms.ndim) if a != axis)))
            for axis in range(atoms.ndim)
        ]
        block = np.ix_(*along)
        return torch.from_numpy(atoms[block]) if keep[block].all() else None


def _numbers(arguments: Mapping[str, Any]) -> list[float]:
    """Return the numbers among an operator's arguments."""
    return [a for a in arguments.values() if isinstance(a, int | float) and not isinstance(a, bool)]


def follow(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> None:
    """Check that a model, made smaller, sends its channels where the original does; raise `Mismatch` if not."""
    build = operate_on_meta if structure.trace.meta else operate
    small = build(model, surgery(structure.trace, structure.grouping, kept))
    follower = Follower(switch_to_eval(small), structure, kept)
    try:
        follower.forward(example)
    except Mismatch:
        raise
    except Exception as error:
        raise Mismatch(len(follower.ops), str(error)) from error
