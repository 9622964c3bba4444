"""Find out what the user's code allows, by trying.

One forward pass shows where channels go at the original widths, not where they would go at others: `chunk(2)` and
`split(64)` look the same. So a smaller copy (shapes only) with some channels of every group removed is traced with
the original's labels, and each operator must send them where it sent them before. Where one does not, the
assumption behind it is given up for the next weaker one, down to freezing the channels that reach it.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar import ops
from slimilar.groups import FIXED, Grouping, Residual, find_groups, summed_classes
from slimilar.labels import Atoms, Labels, classes
from slimilar.records import Freeze
from slimilar.rewrite import Kept, atoms_kept, operate, operate_on_meta, surgery
from slimilar.select import can_select
from slimilar.trace import Choices, Example, Op, Trace, Tracer, Value, trace

_PATIENCE = 200  # more operators than any network has assumptions
_LEVELS = 4


class Mismatch(Exception):
    """The smaller model does not send its channels the way the original does."""

    def __init__(self, op: int, fact: str) -> None:
        super().__init__(fact)
        self.op, self.fact = op, fact


@dataclass(frozen=True, eq=False)
class Structure:
    """What a model's channels are: a trace that holds at other widths, and its groups."""

    trace: Trace
    grouping: Grouping
    choices: Choices


class Follower(Tracer):
    """Trace a smaller model with the labels of the original, and stop where they go another way."""

    def __init__(self, small: nn.Module, structure: Structure, kept: Kept) -> None:
        original = structure.trace
        super().__init__(small, structure.choices, original.meta)
        self.original = original
        self.stays = atoms_kept(structure.grouping, kept)
        self.together = classes(original.atom_count, [original.ties, original.sums])
        self.home: Mapping[tuple[str, int], Atoms] = {
            (a.tensor, a.axis): np.arange(a.first, a.first + a.size) for a in original.axes
        }

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        a, b = torch.broadcast_tensors(a, b)
        x, y = a.reshape(-1).numpy(), b.reshape(-1).numpy()
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

    def freeze(self, labels: Labels, reason: str) -> None:
        """What stays is settled already."""

    def frozen_so_far(self) -> list[Freeze]:
        return [f for f in self.original.freezes if f.op <= len(self.ops)]

    def _label_axes(self, name: str, shape: tuple[int, ...]) -> Labels:
        found = []
        for axis, size in enumerate(shape):
            atoms = self.home.get((name, axis), np.empty(0, np.int64))
            atoms = atoms[self.stays[atoms]]
            if len(atoms) == size and size > 1:
                found.append(
                    torch.from_numpy(atoms).reshape([-1 if a == axis else 1 for a in range(len(shape))])
                )
        return tuple(found)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.index_select.default and self._stack[-1] in self.choices.select:
            out = func(*args)  # the selection that surgery put in front of a batch norm
            self._store(out, Value(tuple(out.shape), (), None, True, False))
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _record(self, call: ops.Call, inputs: list[int], labels: list[Labels]) -> None:
        index = len(self.ops)
        expected = self.original.ops[index] if index < len(self.original.ops) else None
        if expected is None or expected.name != call.name:
            raise Mismatch(index, "other operators run")
        if torch.Tag.pointwise in call.func.tags and _numbers(call.bound) != _numbers(expected.arguments):
            raise Mismatch(index, "a number in the code follows the width")
        super()._record(call, inputs, labels)
        for mine, theirs in zip(self.ops[-1].outputs, expected.outputs, strict=True):
            if not self._agree(self.values[mine].labels, self.original.values[theirs].labels):
                raise Mismatch(index, "channels arrive elsewhere")

    def _settle(self, labels: Labels) -> Labels:
        """Let a part of a split that has shrunk to one channel keep its label, for where it is put beside others."""
        wide = tuple(f for f in labels if f.numel() > 1)
        return wide or labels[:1]

    def _agree(self, mine: Labels, theirs: Labels) -> bool:
        mine = tuple(f for f in mine if f.numel() > 1)
        wanted = [w for f in theirs if (w := self._shrunk(f)) is None or w.numel() > 1]
        return len(mine) == len(wanted) and all(
            w is not None and m.shape == w.shape and bool((m == w).all())
            for m, w in zip(mine, wanted, strict=True)
        )

    def _shrunk(self, factor: Tensor) -> Tensor | None:
        """Return a factor of the original without what was removed; None if that is not a block any more."""
        flat = factor.numpy()
        keep = np.where(flat >= 0, self.stays[flat], True)
        along = [
            np.flatnonzero(keep.any(axis=tuple(a for a in range(flat.ndim) if a != axis)))
            for axis in range(flat.ndim)
        ]
        block = np.ix_(*along)
        return torch.from_numpy(flat[block]) if keep[block].all() else None


def _numbers(arguments: Mapping[str, Any]) -> list[float]:
    """Return the numbers among an operator's arguments."""
    return [a for a in arguments.values() if isinstance(a, int | float) and not isinstance(a, bool)]


def follow(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> None:
    """Check that a model, made smaller, sends its channels where the original does; raise `Mismatch` if not."""
    build = operate_on_meta if structure.trace.meta else operate
    small = build(model, surgery(structure.trace, structure.grouping, kept))
    follower = Follower(small.eval(), structure, kept)
    try:
        follower.run(example)
    except Mismatch:
        raise
    except Exception as error:
        raise Mismatch(len(follower.ops), str(error)) from error


def analyse(
    model: nn.Module, example: Example, residual: Residual = "inner", choices: Choices | None = None
) -> Structure:
    """Trace a model, group its channels, and probe until the groups hold at other widths."""
    with _no_collection():
        return _analyse(model, example, residual, choices or Choices())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest: a trace makes many small objects that all stay, and it would look at each."""
    resting = not gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not resting:
            gc.enable()


def _analyse(model: nn.Module, example: Example, residual: Residual, choices: Choices) -> Structure:
    structure = _structure(model, example, residual, choices)
    if residual == "select":
        choices = _choose_selections(model, example, structure)
        structure = _structure(model, example, residual, choices)
    for _ in range(_PATIENCE):
        fault = _fault(model, example, structure)
        if fault is None:
            break
        choices = _give_way(structure, fault) or _give_up(model, example, structure)
        structure = _structure(model, example, residual, choices)
    return structure


def _fault(model: nn.Module, example: Example, structure: Structure) -> Mismatch | None:
    """Return where a smaller copy goes another way, if it does."""
    if not structure.grouping.groups:
        return None
    try:
        follow(model, example, structure, _some(structure))
    except Mismatch as fault:
        return fault
    return None


def _structure(model: nn.Module, example: Example, residual: Residual, choices: Choices) -> Structure:
    found = trace(model, example, choices)
    return Structure(found, find_groups(found, residual), choices)


def _some(structure: Structure) -> Kept:
    """Remove some of every group that is wide enough to tell.

    Of each run between two cuts at least one channel leaves, and of groups of the same width different numbers:
    code that takes one width for another must not get away with it.
    """
    grouping = structure.grouping
    kept = np.ones(grouping.unit_count, np.bool_)
    random = np.random.default_rng(0)
    runs = _runs(structure)
    turns: Counter[int] = Counter()
    for g, (start, group) in enumerate(zip(grouping.offsets, grouping.groups, strict=True)):
        free = start + np.array([u for u in range(group.width) if u not in group.fixed], np.int64)
        first = [
            u for run in runs.get(g, []) for u in random.permutation(np.intersect1d(run, free))[:1].tolist()
        ]
        count = max(len(set(first)), 1 + (len(free) // 4 + turns[group.width] + g) % max(1, len(free) // 2))
        turns[group.width] += 1
        chosen = list(dict.fromkeys([*first, *random.permutation(free).tolist()]))
        kept[chosen[: max(0, min(count, len(free), group.width - 2))]] = False
    return kept


def _runs(structure: Structure) -> dict[int, list[Atoms]]:
    """Return the units between two cuts, by group."""
    grouping = structure.grouping
    found: dict[int, list[Atoms]] = {}
    for run in structure.trace.runs:
        units = np.unique(grouping.unit_of[run])
        for g in np.unique(np.searchsorted(grouping.offsets, units[units >= 0], side="right") - 1).tolist():
            found.setdefault(g, []).append(units)
    return found


def _give_way(structure: Structure, fault: Mismatch) -> Choices | None:
    """Give up the assumption behind the operator at fault for the next weaker one; None if there is none left."""
    choices = structure.choices
    op = _blame(structure, fault.op)
    if op is None:
        return None
    signature = op.signature
    level = choices.levels.get(signature, 0)
    if signature not in choices.mend and level < _LEVELS and op.name in ops.RULES:
        return replace(choices, mend=choices.mend | {signature})
    if op.name in ops.LEVELLED and level < _LEVELS:
        levels = {**choices.levels, signature: level + 1}
        return replace(choices, levels=levels, mend=choices.mend - {signature})
    return replace(choices, stiff=choices.stiff | {signature}, mend=choices.mend - {signature})


def _blame(structure: Structure, index: int) -> Op | None:
    """Return the operator at fault, if channels that may leave reach it; a copy is not, but what it is made for."""
    found = structure.trace
    copies = (op for op in found.ops[index:] if op.name not in ("aten.clone", "aten._to_copy", "aten.expand"))
    op = next(copies, None)
    if op is None or op.signature in structure.choices.stiff:
        return None
    atoms = [factor.reshape(-1).numpy() for i in op.inputs for factor in found.values[i].labels]
    units = np.append(structure.grouping.unit_of, FIXED)[np.concatenate([np.empty(0, np.int64), *atoms])]
    return op if (units >= 0).any() else None


def _give_up(model: nn.Module, example: Example, structure: Structure) -> Choices:
    """Keep one group whole whose width the code depends on, found by halving the groups that shrink."""
    some, grouping = _some(structure), structure.grouping
    shrinking = [
        g for g, group in enumerate(grouping.groups) if not some[grouping.offsets[g] :][: group.width].all()
    ]
    low, high = 0, len(shrinking)
    while high - low > 1:
        middle = (low + high) // 2
        kept = np.ones_like(some)
        for g in shrinking[:middle]:
            inside = slice(grouping.offsets[g], grouping.offsets[g] + grouping.groups[g].width)
            kept[inside] = some[inside]
        low, high = (low, middle) if _fails(model, example, structure, kept) else (middle, high)
    names = frozenset(grouping.groups[shrinking[high - 1]].writers)
    return replace(structure.choices, rigid=structure.choices.rigid | names)


def _fails(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> bool:
    try:
        follow(model, example, structure, kept)
    except Mismatch:
        return True
    return False


def _choose_selections(model: nn.Module, example: Example, structure: Structure) -> Choices:
    """Let batch norms that read a residual stream choose their part of it, unless what they write joins a stream."""
    readers = frozenset(_norms_on_streams(model, structure))
    cut = _structure(model, example, "select", replace(structure.choices, select=readers))
    inside = frozenset(_norms_on_streams(model, cut))
    return replace(structure.choices, select=readers - inside)


def _norms_on_streams(model: nn.Module, structure: Structure) -> list[str]:
    """Return the batch norms whose channels residual additions join, and that run once."""
    found = structure.trace
    label = classes(found.atom_count, [found.ties, found.sums])
    summed = summed_classes(found, label)
    runs = Counter(n.module for n in found.norms)
    return [
        n.module
        for n in found.norms
        if runs[n.module] == 1
        and can_select(model.get_submodule(n.module))
        and summed & set(label[n.atoms[n.atoms >= 0]].tolist())
    ]
