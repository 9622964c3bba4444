"""Find out what the user's code allows, by trying.

One forward pass shows where channels go at the original widths, not where they would go at others: `chunk(2)` and
`split(64)` look the same. So a smaller copy (shapes only) with some channels of every group removed is traced with
the original's labels, and each operator must send them where it sent them before. Where one does not, the
assumption behind it is given up for the next weaker one, down to freezing the channels that reach it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from torch import nn

from slimilar.errors import TraceError
from slimilar.graph.assumptions import Assumptions
from slimilar.graph.grouping import find_groups
from slimilar.graph.groups import Residual
from slimilar.graph.labels import atoms_in
from slimilar.graph.other_batch import as_numbered_in, grows, may_join_images, summed_units
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.surgery.channel_selection import can_select
from slimilar.surgery.other_inputs import batch_size, rebatched
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept
from slimilar.surgery.trials import trials
from slimilar.surgery.weakening import weaken, with_a_number_less, with_a_size_less
from slimilar.utils.gc_pause import collector_paused
from slimilar.utils.pytree import Example

_MOST_TRIALS = 200  # more than any network has operators behind which an assumption stands


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
            fixed = _read_otherwise(model, example, structure)
            if not fixed:
                break
            assumptions = _with_fixed(structure, fixed)
        else:
            assumptions = (
                _first_further(model, example, residual, fault, with_a_number_less(structure, fault))
                or weaken(structure, fault)
                or _first_further(model, example, residual, fault, with_a_size_less(structure, fault))
                or _fix_a_group(model, example, structure, fault)
            )
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


def _first_further(
    model: nn.Module, example: Example, residual: Residual, fault: Mismatch, candidates: Iterable[Assumptions]
) -> Assumptions | None:
    """Return the first assumptions under which a smaller copy goes the original's way for longer than to a fault."""
    for assumptions in candidates:
        found = _fault(model, example, _structure(model, example, residual, assumptions))
        if found is None or found.op > fault.op:
            return assumptions
    return None


def _structure(model: nn.Module, example: Example, residual: Residual, assumptions: Assumptions) -> Structure:
    found = trace(model, example, assumptions)
    return Structure(found, find_groups(found, residual), assumptions)


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
    return _with_fixed(structure, grouping.groups[shrinking[high - 1]].producers)


def _with_fixed(structure: Structure, names: Iterable[str]) -> Assumptions:
    assumptions = structure.assumptions
    return replace(assumptions, fixed_layers=assumptions.fixed_layers | frozenset(names))


def _read_otherwise(model: nn.Module, example: Example, structure: Structure) -> set[str]:
    """Return the layers whose channels are read elsewhere on a larger batch: images and channels share an axis.

    So it is with kernels for each image. One image does not show it; on several, that axis is longer than the batch.
    """
    grouping, original, size = structure.grouping, structure.trace, batch_size(example)
    heads = {original.values[r.value].shape[0] for r in original.summing}
    if not original.meta or not grouping.groups or not size or (size > 1 and heads <= {size}):
        return set()
    if not may_join_images(original):
        return set()
    try:
        larger = trace(model, rebatched(example, size + 1), structure.assumptions)
    except TraceError:  # the model takes batches of one size
        return set()
    found = as_numbered_in(original, larger)
    if found is None or not found.meta or not grows(original, found, size + 1):
        return set()
    here, there = (set(summed_units(t, grouping)) for t in (original, found))
    units = [u for _, some in here ^ there for u in some if u >= 0]
    groups = np.unique(np.searchsorted(grouping.offsets, units, side="right") - 1).tolist()
    return {name for g in groups for name in grouping.groups[g].producers}


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
