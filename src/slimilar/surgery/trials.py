"""Which channels to remove in a trial, so that code which depends on a width shows it.

Two widths must not agree by chance: neither those of two groups, nor the sums of some where they are put side by side.
So groups of the same width lose different numbers of units, and groups whose width the code may know are also made
smaller apart from each other and from all the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from torch import nn

from slimilar.graph import rules
from slimilar.graph.labels import Atoms
from slimilar.graph.records import Op, Trace
from slimilar.graph.structure import Structure
from slimilar.surgery.rewrite import Kept

_NARROW = 8  # units: groups narrower than this lose too few to be told apart by their numbers


def trials(model: nn.Module, structure: Structure) -> Iterator[Kept]:
    """Yield what stays in each trial: first some of every group, then groups apart from each other."""
    runs = _runs(structure)
    first = _remove_some(structure, runs)
    yield first
    narrow = {g for g, group in enumerate(structure.grouping.groups) if group.width < _NARROW}
    apart = sorted(narrow | _with_known_width(model, structure))
    turns = max((len(runs.get(g, [])) for g in narrow), default=1)
    for turn in range(min(max(1, turns), _NARROW)) if apart else ():
        single = _remove_one(structure, runs, turn)
        removed = _choose(structure, narrow, single, first if turn == 0 else np.ones_like(first))
        for side in _sides(structure, apart):
            trial = removed | ~side
            if not trial.all():
                yield trial


def _choose(structure: Structure, narrow: set[int], for_narrow: Kept, for_others: Kept) -> Kept:
    """Return what stays if narrow groups are treated by one trial, the others by another."""
    groups = structure.grouping.groups
    is_narrow = np.repeat([g in narrow for g in range(len(groups))], [group.width for group in groups])
    found: Kept = np.where(is_narrow, for_narrow, for_others)
    return found


def _sides(structure: Structure, apart: list[int]) -> Iterator[Kept]:
    """Yield sets of units such that any two of the groups, and each of them and the rest, are in different ones.

    The groups are numbered from 1, all others share the number 0: any two numbers differ in some binary digit.
    """
    groups = structure.grouping.groups
    number = np.zeros(len(groups), np.int64)
    number[apart] = np.arange(1, len(apart) + 1)
    of_unit = np.repeat(number, [group.width for group in groups])
    for digit in range(len(apart).bit_length()):
        for bit in (1, 0):
            yield (of_unit >> digit) & 1 == bit


def _with_known_width(model: nn.Module, structure: Structure) -> set[int]:
    """Return the groups that pass an operator whose arguments hold sizes: these may be another tensor's."""
    grouping, found = structure.grouping, structure.trace
    atoms = [
        factor.numpy().reshape(-1)
        for op in found.ops
        if _takes_sizes(found, op) and not _is_torch_layer(model, op.module)
        for value in op.inputs[:1]
        for factor in found.values[value].labels
    ]
    everywhere = np.concatenate([np.empty(0, np.int64), *atoms])
    units = np.unique(grouping.unit_of[everywhere[everywhere >= 0]])
    return set((np.searchsorted(grouping.offsets, units[units >= 0], side="right") - 1).tolist())


def _takes_sizes(trace: Trace, op: Op) -> bool:
    """Tell whether an operator takes sizes from the code; one that only joins axes takes them from its input."""
    if op.name not in rules.SIZED:
        return False
    before, after = (len(trace.values[v].shape) for v in (op.inputs[0], op.outputs[0]))
    return rules.RULES[op.name] is not rules.view or after >= before


def _is_torch_layer(model: nn.Module, path: str) -> bool:
    """Tell whether a module is one of torch's that takes sizes from its own input only, as a linear layer does."""
    return type(model.get_submodule(path)) in (nn.Linear, nn.MultiheadAttention, nn.Flatten)


def _remove_one(structure: Structure, runs: dict[int, list[Atoms]], turn: int) -> Kept:
    """Remove one unit of every group, from the run between cuts whose turn it is."""
    grouping = structure.grouping
    kept = np.ones(grouping.unit_count, np.bool_)
    random = np.random.default_rng(turn)
    for g, group in enumerate(grouping.groups):
        free = _free(structure, g)
        mine = runs.get(g, [free])
        inside = np.intersect1d(mine[turn % len(mine)], free)
        if group.width > 1 and len(inside):
            kept[random.choice(inside)] = False
    return kept


def _remove_some(structure: Structure, runs: dict[int, list[Atoms]]) -> Kept:
    """Remove some of every group: a unit of each run between two cuts, and different numbers of groups of one width."""
    grouping = structure.grouping
    kept = np.ones(grouping.unit_count, np.bool_)
    random = np.random.default_rng(0)
    turns: Counter[int] = Counter()
    for g, group in enumerate(grouping.groups):
        free = _free(structure, g)
        first = [
            u for run in runs.get(g, []) for u in random.permutation(np.intersect1d(run, free))[:1].tolist()
        ]
        count = max(len(set(first)), 1 + (len(free) // 4 + turns[group.width]) % max(1, len(free) // 2))
        turns[group.width] += 1
        chosen = list(dict.fromkeys([*first, *random.permutation(free).tolist()]))
        kept[chosen[: max(0, min(count, len(free), group.width - 2))]] = False
    return kept


def _free(structure: Structure, g: int) -> Atoms:
    """Return the units of a group that may leave, numbered over all groups."""
    group, start = structure.grouping.groups[g], structure.grouping.offsets[g]
    free = np.ones(group.width, np.bool_)
    free[list(group.fixed)] = False
    found: Atoms = start + np.flatnonzero(free)
    return found


def _runs(structure: Structure) -> dict[int, list[Atoms]]:
    """Return the units between two cuts, by group, each set once."""
    grouping = structure.grouping
    found: dict[int, list[Atoms]] = {}
    distinct = {u.tobytes(): u for run in structure.trace.runs for u in [np.unique(grouping.unit_of[run])]}
    for units in distinct.values():
        for g in np.unique(np.searchsorted(grouping.offsets, units[units >= 0], side="right") - 1).tolist():
            found.setdefault(g, []).append(units)
    return found
