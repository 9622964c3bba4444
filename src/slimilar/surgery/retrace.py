"""Run a smaller copy with the labels of the original: does every channel arrive where it did before?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.graph import rules
from slimilar.graph.labels import Atoms, Labels, axes_of, compact, on_axis, side_by_side
from slimilar.graph.reasons import Reason
from slimilar.graph.recorder import Recorder
from slimilar.graph.records import Fact, Op, Trace
from slimilar.graph.structure import Structure
from slimilar.surgery.rewrite import Kept, atoms_kept, operate, operate_on_meta, surgery
from slimilar.utils.modules import in_eval_mode
from slimilar.utils.pytree import Example


class Mismatch(Exception):
    """The smaller model does not send its channels the way the original does."""

    def __init__(self, op: int, fact: str, kept: Kept, number: bool = False) -> None:
        super().__init__(fact)
        self.op, self.fact, self.kept = op, fact, kept  # the operator, what happened, and what stayed
        self.number = number  # the code computes a number from a width, such as the scale of attention


def retrace(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> None:
    """Check that a model, made smaller, sends its channels where the original does; raise `Mismatch` if not."""
    build = operate_on_meta if structure.trace.meta else operate
    small = in_eval_mode(build(model, surgery(structure.trace, structure.grouping, kept)))
    recorder = Recorder(small, Checker(structure, kept), structure.assumptions, structure.trace.meta)
    try:
        recorder.forward(example)
    except Mismatch:
        raise
    except Exception as error:
        raise Mismatch(len(recorder.ops), str(error), kept) from error


class Checker:
    """The second label policy: compare with the original, operator by operator; see `LabelPolicy` for the methods."""

    def __init__(self, structure: Structure, kept: Kept) -> None:
        self._original, self._kept = structure.trace, kept
        self._stays = np.append(
            atoms_kept(structure.grouping, kept), True
        )  # CONSTANT = -1 finds the last entry
        self._left_on = _left_on_axes(structure.trace, self._stays[:-1])
        self._classes = np.append(structure.trace.together, -1)
        self._op = 0  # the number of the operator that runs
        self._twins: dict[int, int] = {}  # value -> the original's
        self._rule_applied = True
        # Id -> a factor, kept alive, and its remainder.
        self._remainders: dict[int, tuple[Tensor, Tensor | None]] = {}

    # --- for the rules ----------------------------------------------------------------------------------------

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        """Check that channels which meet are tied in the original."""
        x, y = side_by_side(a, b)
        both, together = (x >= 0) & (y >= 0), self._original.together
        if not np.array_equal(together[x[both]], together[y[both]]):
            raise self._mismatch("other channels meet")

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Do nothing: assumptions are what is being tested, by where the labels arrive."""

    def merge(self, factor: Tensor, axes: Sequence[int]) -> Tensor:
        """Return the first labels along all axes on which they belong together in the original.

        An axis that tells channels apart in what the original's operator returned is left as it is: later operators may
        have tied its channels too.
        """
        classes = torch.from_numpy(self._classes[factor.numpy()])
        outputs = [self._original.values[v] for v in self._original.ops[self._op].outputs]
        apart = {axis for v in outputs for f in v.labels if f.ndim == factor.ndim for axis in axes_of(f)}
        for axis in axes_of(factor):
            if axis not in apart and bool((classes == classes.narrow(axis, 0, 1)).all()):
                factor, classes = factor.narrow(axis, 0, 1), classes.narrow(axis, 0, 1)
        return factor

    def freeze(self, labels: Labels, why: Reason) -> None:
        """Do nothing: what stays is settled already."""

    def note(self, fact: Fact) -> None:
        """Do nothing: the facts are known."""

    def is_frozen(self, factor: Tensor) -> bool:
        """Tell whether all channels of a factor were known to stay at this point of the original."""
        kept = [f.atoms for f in self._original.freezes if f.op <= self._op]
        atoms = factor.numpy().reshape(-1)
        return bool(kept) and bool(np.isin(atoms[atoms >= 0], np.concatenate(kept)).all())

    def original_groups(self, call: rules.Call) -> tuple[int, int]:
        """Return the number of groups and of input channels that a convolution has in the original."""
        expected = self._expected(call).arguments
        return int(expected["groups"]), self._original.values[expected["input"].value].shape[1]

    # --- for the recorder -------------------------------------------------------------------------------------

    def enter(self, name: str, shape: tuple[int, ...]) -> Labels:
        """Return the labels of a parameter or buffer: those of the original that are left."""
        found = []
        for axis, size in enumerate(shape):
            atoms = self._left_on.get((name, axis))
            if atoms is not None and len(atoms) == size > 1:
                found.append(on_axis(torch.from_numpy(atoms), axis, len(shape)))
        return tuple(found)

    def label(self, call: rules.Call) -> list[Labels]:
        """Return the labels of every output of a call, by its rule unless that could say no more.

        So it is if the operator does the same to the same tensors, made smaller, or if of each one channel is left.
        """
        expected = self._expected(call)
        same = self._same_call(call, expected)
        if (
            not same
            and rules.is_pointwise(call.func)
            and _numbers(call.bound) != _numbers(expected.arguments)
        ) or self._has_other_number(call, expected):
            raise Mismatch(self._op, "a number in the code follows the width", self._kept, number=True)
        known = self._left_of_all(expected) if same or _has_single_channels(call) else None
        self._rule_applied = known is None
        if known is not None:
            return known
        labels = rules.apply(self, call)
        return [self._with_single(found, v) for found, v in zip(labels, expected.outputs, strict=True)]

    def _has_other_number(self, call: rules.Call, expected: Op) -> bool:
        """Tell whether the code made a tensor of one number that it did not make of the original: of a width."""
        if not self._original.constants:
            return False
        pairs = zip(call.ins, (self._original.constants.get(j) for j in expected.inputs), strict=False)
        return any(
            theirs is not None
            and theirs.numel() == mine.numel() == 1
            and call.knows(mine)
            and bool(call.numbers(mine).reshape(()) != theirs.cpu().reshape(()))
            for mine, theirs in pairs
        )

    def _with_single(self, found: Labels, value: int) -> Labels:
        """Label an output of which one channel is left: a rule sees no axis of channels in it any more."""
        if any(f.numel() > 1 for f in found):
            return found
        left = [self._left(f) for f in self._original.values[value].labels]
        return tuple(one for f in left if f is not None and (one := compact(f)).numel() == 1)[:1] or found

    def settle(self, labels: Labels) -> Labels:
        """Let a part of a split that has shrunk to one channel keep its label, for where it is put beside others."""
        return tuple(f for f in labels if f.numel() > 1) or labels[:1]

    def recorded(self, op: Op, labels: list[Labels]) -> None:
        """Check that the outputs of an operator hold the channels that they hold in the original."""
        theirs = self._original.ops[self._op].outputs
        for mine, twin, found in zip(op.outputs, theirs, labels, strict=True):
            self._twins[mine] = twin
            if self._rule_applied and not self._agree(found, self._original.values[twin].labels):
                raise self._mismatch("channels arrive elsewhere")
        self._op += 1

    # --- the comparison ---------------------------------------------------------------------------------------

    def _mismatch(self, fact: str) -> Mismatch:
        return Mismatch(self._op, fact, self._kept)

    def _expected(self, call: rules.Call) -> Op:
        """Return the original's operator at this place."""
        ops = self._original.ops
        if self._op >= len(ops) or ops[self._op].name != call.name:
            raise self._mismatch("other operators run")
        return ops[self._op]

    def _left_of_all(self, expected: Op) -> list[Labels] | None:
        """Return what is left of the labels of every output of the original; None if one is not a block any more."""
        found = []
        for v in expected.outputs:
            factors = [self._left(f) for f in self._original.values[v].labels]
            whole = tuple(f for f in factors if f is not None)
            if len(whole) < len(factors):
                return None
            found.append(whole)
        return found

    def _same_call(self, call: rules.Call, expected: Op) -> bool:
        theirs = self._original.values
        return (
            call.func is expected.func
            and len(call.inputs) == len(expected.inputs)
            and tuple(call.kwargs) == expected.keywords
            and (
                (call.given == expected.given and rules.is_widthless(call))
                or (
                    rules.is_depthwise(call.name, call.given, call.seen)
                    and self._was_depthwise(call, expected)
                )
            )
            and all(
                self._twins.get(i) == j if value.name is None else value.name == theirs[j].name
                for i, j, value in zip(call.inputs, expected.inputs, call.seen, strict=True)
            )
            and not call.selects
            and not call.is_fixed
        )

    def _was_depthwise(self, call: rules.Call, expected: Op) -> bool:
        """Tell whether a depthwise convolution was one in the original, and the same but for its width."""
        seen = [self._original.values[j] for j in expected.inputs]
        same = call.given[:-1] == expected.given[:-1]
        return same and rules.is_depthwise(expected.name, expected.given, seen)

    def _agree(self, mine: Labels, theirs: Labels) -> bool:
        wanted = [left for f in theirs if (left := self._left(f)) is not None]
        return len(wanted) == len(theirs) and (
            _same(mine, wanted) or _same(self._varying(mine), self._varying(wanted))
        )

    def _varying(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """Leave out factors of which one channel is left, however many positions it has."""
        return [f for f in factors if len(np.unique(self._classes[f.numpy()])) > 1]

    def _left(self, factor: Tensor) -> Tensor | None:
        """Return what is left of a factor of the original; computed once for each."""
        if id(factor) not in self._remainders:
            self._remainders[id(factor)] = factor, _without_removed(factor, self._stays)
        return self._remainders[id(factor)][1]


def _left_on_axes(trace: Trace, stays: Kept) -> dict[tuple[str, int], Atoms]:
    """Return the atoms that stay of every axis of a parameter or buffer."""
    atoms = np.flatnonzero(stays)
    starts = np.searchsorted(atoms, [a.first for a in trace.axes])
    ends = np.searchsorted(atoms, [a.first + a.size for a in trace.axes])
    return {
        (a.tensor, a.axis): atoms[start:end] for a, start, end in zip(trace.axes, starts, ends, strict=True)
    }


def _has_single_channels(call: rules.Call) -> bool:
    """Tell whether one channel is left in every labelled input: where it stands cannot be told any more."""
    factors = [f for value in call.seen for f in value.labels]
    return bool(factors) and all(f.numel() == 1 for f in factors)


def _same(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Tell whether labels are the same, apart from axes along which one channel is left."""
    a, b = ([f for f in factors if f.numel() > 1] for factors in (mine, theirs))
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        a, b = ([c for f in factors if (c := compact(f)).numel() > 1] for factors in (a, b))
    return len(a) == len(b) and all(x is y or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _without_removed(factor: Tensor, stays: Kept) -> Tensor | None:
    """Return a factor without what was removed; None if that is not a block any more."""
    atoms = factor.numpy()
    keep = stays[atoms]
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
