"""The next weaker assumptions about the user's code, after a smaller copy has gone another way than the original.

Every function takes what was found under the present assumptions, and where the copy first went another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, takewhile

import numpy as np

from slimilar.graph import rules
from slimilar.graph.assumptions import Assumptions, HeldNumber, Signature
from slimilar.graph.groups import FIXED
from slimilar.graph.labels import axes_of
from slimilar.graph.records import Op
from slimilar.graph.structure import Structure
from slimilar.surgery.retrace import Mismatch

_LEVELS = 4

Shape = tuple[int, ...]


def weaken(structure: Structure, fault: Mismatch) -> Assumptions | None:
    """Replace the assumption behind the operator at fault by the next weaker one; None if there is none left."""
    assumptions = structure.assumptions
    op = _operator_at_fault(structure, fault.op)
    if op is None:
        return _shrink_sizes_ahead(structure, fault.op)
    if fault.number and (views := _unweakened(structure, op)):
        levels = {**assumptions.levels, **dict.fromkeys(views, 1)}
        return replace(assumptions, levels=levels, held_sizes=assumptions.held_sizes - views)
    signature = op.signature
    level = assumptions.levels.get(signature, 0)
    if signature not in assumptions.held_sizes and level < _LEVELS and op.name in rules.RULES:
        return replace(assumptions, held_sizes=assumptions.held_sizes | {signature})
    if op.name in rules.LEVELLED and level < _LEVELS:
        return _at_level(structure, op, level + 1)
    return replace(
        assumptions,
        fixed_operators=assumptions.fixed_operators | {signature},
        held_sizes=assumptions.held_sizes - {signature},
    )


def _unweakened(structure: Structure, op: Op) -> set[Signature]:
    """Return the views of which another axis may be the one that shrinks, where a number follows the width.

    In attention the queries are scaled by the width of a head: not this may shrink, but the number of heads. So the
    view that the channels of an operator come from is read anew, and with it all that are alike: keys and values.
    """
    views, mine = _regroupings(structure, op), _units(structure, op)
    reaching = [o for o in structure.trace.ops if o.signature in views and mine & _units(structure, o)]
    shapes = {_shapes(structure, o) for o in _last_divisions(structure, reaching)}
    return {s for s, found in views.items() if found in shapes and not structure.assumptions.levels.get(s, 0)}


def _last_divisions(structure: Structure, views: list[Op]) -> list[Op]:
    """Leave out views whose parts are divided again: into queries, keys and values first, and these into heads."""
    taken = [_atoms(structure, view) for view in views]
    return [v for v, mine in zip(views, taken, strict=True) if not any(other < mine for other in taken)]


def _atoms(structure: Structure, op: Op) -> set[int]:
    labels = (structure.trace.values[i].labels for i in op.inputs)
    return {atom for factors in labels for factor in factors for atom in factor.reshape(-1).tolist()}


def _regroupings(structure: Structure, op: Op) -> dict[Signature, tuple[Shape, Shape]]:
    """Return the views in the module of an operator that divide channels into several axes, and their shapes."""
    views = [
        o for o in structure.trace.ops if o.module == op.module and rules.RULES.get(o.name) is rules.view
    ]
    return {
        view.signature: _shapes(structure, view)
        for view in views
        if _divides(structure, view) and _is_reached(structure, view)
    }


def _divides(structure: Structure, view: Op) -> bool:
    """Tell whether a view divides an axis of channels into several."""
    labels = structure.trace.values[view.inputs[0]].labels
    return any(len(axes_of(rules.viewed(factor, *_shapes(structure, view)))) > 1 for factor in labels)


def _shapes(structure: Structure, op: Op) -> tuple[Shape, Shape]:
    values = structure.trace.values
    return values[op.inputs[0]].shape, values[op.outputs[0]].shape


def _alike(structure: Structure, op: Op) -> set[Signature]:
    """Return the views in the module of a view that divide channels as it does, and are read as it is."""
    views = _regroupings(structure, op) if rules.RULES.get(op.name) is rules.view else {}
    level = structure.assumptions.levels.get(op.signature, 0)
    return {
        signature
        for signature, (before, after) in views.items()
        if structure.assumptions.levels.get(signature, 0) == level
        and (before, after) == _shapes(structure, op)
    }


def _operator_at_fault(structure: Structure, index: int) -> Op | None:
    """Return the operator at fault, if channels that may leave reach it; a copy is not, but what it is made for."""
    found = structure.trace
    copies = (op for op in found.ops[index:] if op.name not in ("aten.clone", "aten._to_copy", "aten.expand"))
    op = next(copies, None)
    if op is None or op.signature in structure.assumptions.fixed_operators:
        return None
    return op if _is_reached(structure, op) else None


def _is_reached(structure: Structure, op: Op) -> bool:
    """Tell whether channels that may leave reach an operator."""
    return bool(_units(structure, op))


def _units(structure: Structure, op: Op) -> set[int]:
    """Return the units that reach an operator."""
    labels = (structure.trace.values[i].labels for i in op.inputs)
    atoms = [factor.numpy().reshape(-1) for factors in labels for factor in factors]
    units = np.append(structure.grouping.unit_of, FIXED)[np.concatenate([np.empty(0, np.int64), *atoms])]
    return set(units[units >= 0].tolist())


def _shrink_sizes_ahead(structure: Structure, index: int) -> Assumptions | None:
    """Let numbers shrink that a module compares with a width before it computes with it, as an LSTM does.

    They are looked for at the first operator of the module that channels reach; None if that was tried.
    """
    assumptions, rest = structure.assumptions, structure.trace.ops[index:]
    mine = takewhile(lambda op: op.module == rest[0].module, rest)
    op = next((op for op in mine if _is_reached(structure, op)), None)
    if (
        op is None
        or op.name not in rules.RULES
        or op.signature in assumptions.held_sizes | assumptions.fixed_operators
    ):
        return None
    return replace(assumptions, held_sizes=assumptions.held_sizes | {op.signature})


def _at_level(structure: Structure, op: Op, level: int) -> Assumptions:
    """Read an operator at a level, and with it those that are alike: queries, keys and values are regrouped alike."""
    assumptions, alike = structure.assumptions, {op.signature, *_alike(structure, op)}
    levels = {**assumptions.levels, **dict.fromkeys(alike, level)}
    return replace(assumptions, levels=levels, held_sizes=assumptions.held_sizes - alike)


def with_a_number_less(structure: Structure, fault: Mismatch) -> Iterator[Assumptions]:
    """Leave out a number of the module at fault that counts the same channels as another one, perhaps by chance.

    Sixteen heads of sixteen channels each: of the two numbers that a module holds, one does not shrink with the other.
    """
    ops, assumptions = structure.trace.ops, structure.assumptions
    if fault.op >= len(ops):
        return
    _, place, _ = ops[fault.op].signature
    mine = [n for n in structure.trace.integers if n.module == ops[fault.op].module]
    for _, found in groupby(sorted(mine, key=lambda n: n.atoms.tobytes()), key=lambda n: n.atoms.tobytes()):
        alike = [HeldNumber(place, n.attribute, n.item) for n in found]
        for number in alike if len(alike) > 1 else ():
            yield replace(assumptions, by_chance=assumptions.by_chance | {number})


def with_a_size_less(structure: Structure, fault: Mismatch) -> Iterator[Assumptions]:
    """Read anew an operator of the module at fault for which a number shrinks, the last first.

    The fault may come of that number: values of twice the width of a head do not lose what queries and keys lose.
    """
    ops, assumptions = structure.trace.ops, structure.assumptions
    module = ops[fault.op].module if fault.op < len(ops) else None
    for op in reversed(ops):
        if op.module == module and op.signature in assumptions.held_sizes and op.name in rules.LEVELLED:
            for level in range(assumptions.levels.get(op.signature, 0) + 1, _LEVELS + 1):
                yield _at_level(structure, op, level)
