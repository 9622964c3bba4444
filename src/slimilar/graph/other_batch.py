"""Two traces of one model on batches of other sizes: the atoms of one by the numbers of the other, and what is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from slimilar.graph import rules
from slimilar.graph.groups import FIXED, Grouping
from slimilar.graph.records import Trace
from slimilar.graph.training_only import renumber

# A module, and the unit at each position that an operator of it sums over.
Summed = Counter[tuple[str, tuple[int, ...]]]


def may_join_images(found: Trace) -> bool:
    """Tell whether images and channels may share an axis: some axes of activations are divided, joined or moved.

    What has two axes behind is flattened for a linear layer, and joins none.
    """
    made = (found.values[op.outputs[0]] for op in found.ops if op.name in rules.MOVING)
    return any(value.dynamic and len(value.shape) > 2 for value in made)


def as_numbered_in(original: Trace, found: Trace) -> Trace | None:
    """Return a trace whose reads and writes name the atoms of another trace; None if it uses other parameters."""
    axes, number = renumber(original, found)
    if len(axes) > len(original.axes):
        return None
    number = np.append(number, -1)  # CONSTANT = -1 finds the last entry
    reads = tuple(replace(r, atoms=number[r.atoms], weight=number[r.weight]) for r in found.reads)
    reductions = tuple(replace(r, atoms=number[r.atoms]) for r in found.reductions)
    writes = tuple(replace(w, atoms=number[w.atoms]) for w in found.writes)
    return replace(found, axes=original.axes, reads=reads, reductions=reductions, writes=writes)


def summed_units(found: Trace, grouping: Grouping) -> Summed:
    """Count which units the operators of a module sum over, by position: there removed channels have to be zero."""
    unit_of = np.append(grouping.unit_of, FIXED)  # CONSTANT = -1 finds the last entry
    read = ((found.ops[r.op].module, unit_of[r.atoms]) for r in found.summing)
    return Counter((module, tuple(units.tolist())) for module, units in read if (units >= 0).any())


def grows(original: Trace, found: Trace, size: int) -> bool:
    """Tell whether outputs have as many entries as there are images, where they had before."""
    before = original.values[original.inputs[0]].shape[0]
    pairs = zip(original.outputs, found.outputs, strict=False)
    shapes = [
        (original.values[a].shape, found.values[b].shape) for a, b in pairs if original.values[a].dynamic
    ]
    return len(original.outputs) == len(found.outputs) and all(
        b[:1] == (size,) for a, b in shapes if a[:1] == (before,)
    )
