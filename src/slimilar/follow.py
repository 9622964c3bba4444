"""Follow the channels of a smaller copy: do they go where the original's go?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar import ops
from slimilar.groups import Grouping
from slimilar.labels import Atoms, Labels, classes
from slimilar.records import Choices, Freeze, Trace, Value
from slimilar.rewrite import Kept, atoms_kept, operate, operate_on_meta, surgery
from slimilar.trace import Tracer
from slimilar.trees import Example


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
