"""The first label policy: number the channels of a model, and collect what the rules find out about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimilar.graph import rules
from slimilar.graph.labels import Atoms, Labels, atoms_in, on_axis
from slimilar.graph.reasons import Reason, fixed_size
from slimilar.graph.records import (
    Axis,
    Fact,
    FixedWrite,
    Freeze,
    Integer,
    Norm,
    Op,
    Piece,
    Read,
    Reduction,
    Run,
    WeightNorm,
    Write,
)  # fmt: skip
from slimilar.graph.ties import PendingTies

_LISTED = (Write, Read, Reduction, Norm, Run, Piece, FixedWrite, WeightNorm)


class Collector:
    """Collect ties, freezes and facts; see `LabelPolicy` for the methods."""

    def __init__(self) -> None:
        self.axes: list[Axis] = []
        self.atom_count = 0
        self.ties = PendingTies()
        self.freezes: list[Freeze] = []
        self.integers: list[Integer] = []
        self._facts: dict[type, list[Any]] = {kind: [] for kind in _LISTED}
        self._op = 0  # the number of the operator that runs
        self._atoms = torch.arange(1 << 12)

    # --- for the rules ----------------------------------------------------------------------------------------

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        """Tie labels position by position; what meets a constant has to stay."""
        self.ties.add(a, b, sums, self._op, len(self.freezes))

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Tie labels that the code is assumed to treat alike."""
        self.tie(a, b)

    def merge(self, factor: Tensor, axes: Sequence[int]) -> Tensor:
        """Tie all labels along some axes to the first ones there, and return these."""
        for axis in axes:
            self.bind(factor, factor.narrow(axis, 0, 1))
            factor = factor.narrow(axis, 0, 1)
        return factor

    def freeze(self, labels: Labels, why: Reason) -> None:
        """Keep these channels, and note why."""
        if labels and len(atoms := atoms_in(labels)):
            self.freezes.append(Freeze(atoms, why, self._op))

    def note(self, fact: Fact) -> None:
        """Note a fact; two that name one number of a module have to shrink alike."""
        if isinstance(fact, Integer):
            self._hold(fact)
        else:
            self._facts[type(fact)].append(fact)

    def _hold(self, number: Integer) -> None:
        for other in self.integers:
            if (other.module, other.attribute, other.item) == (number.module, number.attribute, number.item):
                self.bind(torch.from_numpy(other.atoms), torch.from_numpy(number.atoms))
                return
        self.integers.append(number)

    def is_frozen(self, factor: Tensor) -> bool:
        """Tell whether all channels of a factor are known to stay."""
        self.freeze_at_constants()
        kept = [f.atoms for f in self.freezes]
        return bool(kept) and bool(np.isin(atoms_in((factor,)), np.concatenate(kept)).all())

    def original_groups(self, call: rules.Call) -> tuple[int, int]:
        """Return the number of groups and of input channels of a convolution."""
        return int(call["groups"]), int(call["input"].shape[1])

    # --- for the recorder -------------------------------------------------------------------------------------

    def enter(self, name: str, shape: tuple[int, ...]) -> Labels:
        """Number the indices of every axis of a parameter or buffer."""
        return tuple(self._axis(name, axis, shape) for axis, size in enumerate(shape) if size > 1)

    def _axis(self, name: str, axis: int, shape: tuple[int, ...]) -> Tensor:
        first, size = self.atom_count, shape[axis]
        self.axes.append(Axis(name, axis, size, first))
        self.atom_count += size
        if self.atom_count > len(self._atoms):
            self._atoms = torch.arange(2 * self.atom_count)
        vector = self._atoms.narrow(0, first, size)
        return vector if len(shape) == 1 else on_axis(vector, axis, len(shape))

    def label(self, call: rules.Call) -> list[Labels]:
        """Return the labels of every output of a call."""
        return rules.apply(self, call)

    def settle(self, labels: Labels) -> Labels:
        """Drop factors that do not vary: a tensor that is one channel throughout cannot lose it."""
        single = [f for f in labels if f.numel() == 1]
        if not single:
            return labels
        for factor in single:
            self.freeze((factor,), fixed_size("a single channel is taken out"))
        return tuple(f for f in labels if f.numel() > 1)

    def recorded(self, op: Op, labels: list[Labels]) -> None:
        """Count the operators."""
        self._op += 1

    # --- what was found ---------------------------------------------------------------------------------------

    def freeze_at_constants(self) -> None:
        """Freeze what was tied to constants since this was last asked, each in its place among the freezes.

        Of several reasons to keep a channel the first counts.
        """
        for atoms, op, place in reversed(self.ties.sort()):
            self.freezes.insert(place, Freeze(atoms, fixed_size("meets constant padding"), op))

    def facts(self, kind: type) -> list[Any]:
        """Return the facts of a kind, in the order in which they were noted."""
        return self._facts[kind]

    def atoms(self, kind: type[Run] | type[Piece]) -> tuple[Atoms, ...]:
        """Return the channels of every run or piece."""
        return tuple(fact.atoms for fact in self._facts[kind])
