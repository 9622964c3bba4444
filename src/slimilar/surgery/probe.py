"""Find out what the user's code allows, by trying.

One forward pass shows where channels go at the original widths, not where they would go at others: `chunk(2)` and
`split(64)` look the same. So a smaller copy (shapes only) with some channels of every group removed is traced with
the original's labels, and each operator must send them where it sent them before. Where one does not, the
assumption behind it is given up for the next weaker one, down to freezing the channels that reach it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile

import numpy as np
from torch import nn

from slimilar.graph import rules
from slimilar.graph.assumptions import Assumptions, Signature
from slimilar.graph.grouping import find_groups
from slimilar.graph.groups import FIXED, Residual
from slimilar.graph.labels import atoms_in, axes_of
from slimilar.graph.records import Op
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.surgery.channel_selection import can_select
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept
from slimilar.surgery.trials import trials
from slimilar.utils.gc_pause import collector_paused
from slimilar.utils.pytree import Example

_MOST_TRIALS = 200  # more than any network has operators behind which an assumption stands
_LEVELS = 4

Shape = tuple[int, ...]


def find_structure(
    model: nn.Module, example: Example, residual: Residual = "inner", assumptions: Assumptions | None = None
) -> Structure:
    """Trace a model, group its channels, and probe until the groups hold at other widths."""
    with collector_paused():
        return _probed(model, example, residual, assumptions or Assumptions())


def _probed(model: nn.Module, example: Example, residual: Residual, assumptions: Assumptions) -> Structure:
    structure = _structure(model, example, residual, assumptions)
    if residual == "select":
        assumptions = _choose_selections(model, example, structure)
        structure = _structure(model, example, residual, assumptions)
    for _ in range(_MOST_TRIALS):
        fault = _fault(model, example, structure)
        if fault is None:
            break
        assumptions = _weaken(structure, fault) or _fix_a_group(model, example, structure, fault)
        structure = _structure(model, example, residual, assumptions)
    return structure


def _fault(model: nn.Module, example: Example, structure: Structure) -> Mismatch | None:
    """Return where a smaller copy goes another way, if it does."""
    if not structure.grouping.groups:
        return None
    for kept in trials(model, structure):
        try:
            retrace(model, example, structure, kept)
        except Mismatch as fault:
            return fault
    return None


def _structure(model: nn.Module, example: Example, residual: Residual, assumptions: Assumptions) -> Structure:
    found = trace(model, example, assumptions)
    return Structure(found, find_groups(found, residual), assumptions)


def _weaken(structure: Structure, fault: Mismatch) -> Assumptions | None:
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
        alike = {signature, *_alike(structure, op)}  # queries, keys and values are regrouped alike
        levels = {**assumptions.levels, **dict.fromkeys(alike, level + 1)}
        return replace(assumptions, levels=levels, held_sizes=assumptions.held_sizes - alike)
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
    shapes = {
        _shapes(structure, o)
        for o in structure.trace.ops
        if o.signature in views and mine & _units(structure, o)
    }
    return {s for s, found in views.items() if found in shapes and not structure.assumptions.levels.get(s, 0)}


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


def _fix_a_group(model: nn.Module, example: Example, structure: Structure, fault: Mismatch) -> Assumptions:
    """Keep one group whole whose width the code depends on, found by halving the groups that shrink."""
    grouping = structure.grouping
    some = fault.kept
    shrinking = [
        g for g, group in enumerate(grouping.groups) if not some[grouping.offsets[g] :][: group.width].all()
    ]
    shrinking = shrinking or list(range(len(grouping.groups)))
    low, high = 0, len(shrinking)
    while high - low > 1:
        middle = (low + high) // 2
        kept = np.ones_like(some)
        for g in shrinking[:middle]:
            inside = slice(grouping.offsets[g], grouping.offsets[g] + grouping.groups[g].width)
            kept[inside] = some[inside]
        low, high = (low, middle) if _fails(model, example, structure, kept) else (middle, high)
    names = frozenset(grouping.groups[shrinking[high - 1]].producers)
    return replace(structure.assumptions, fixed_layers=structure.assumptions.fixed_layers | names)


def _fails(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> bool:
    try:
        retrace(model, example, structure, kept)
    except Mismatch:
        return True
    return False


def _choose_selections(model: nn.Module, example: Example, structure: Structure) -> Assumptions:
    """Let batch norms that read a residual stream choose their part of it, unless what they write joins a stream."""
    consumers = frozenset(_norms_on_streams(model, structure))
    cut = _structure(model, example, "select", replace(structure.assumptions, selections=consumers))
    inside = frozenset(_norms_on_streams(model, cut))
    return replace(structure.assumptions, selections=(consumers & _fed_by_streams(cut)) - inside)


def _fed_by_streams(structure: Structure) -> frozenset[str]:
    """Return the batch norms whose input itself is a stream, and not what another one chose from it."""
    found = structure.trace
    inputs = [(n.module, found.values[found.ops[n.op].inputs[0]].labels) for n in found.norms]
    return frozenset(
        module for module, labels in inputs if np.isin(found.together[atoms_in(labels)], found.summed).any()
    )


def _norms_on_streams(model: nn.Module, structure: Structure) -> list[str]:
    """Return the batch norms whose channels residual additions join, and that run once."""
    found = structure.trace
    runs = Counter(n.module for n in found.norms)
    return [
        n.module
        for n in found.norms
        if runs[n.module] == 1
        and can_select(model.get_submodule(n.module))
        and np.isin(found.together[n.atoms[n.atoms >= 0]], found.summed).any()
    ]
