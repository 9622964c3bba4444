"""Parts of a model that run only in training, such as the auxiliary classifiers of GoogLeNet.

They read channels that the rest of the network writes, and have to lose them too. A second trace, with the modules
around them in training mode, shows how; what it finds about them is merged into the first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from slimilar.graph.labels import Atoms
from slimilar.graph.records import Axis, Freeze, Integer, NotRun, Trace


def enable(model: nn.Module, seen: Trace) -> bool:
    """Set the modules around parameters that no operator has used to training mode; return whether there are any."""
    unused = {name.rpartition(".")[0] for name in _unused(seen)}
    for path in unused:
        parts = path.split(".") if path else []
        for end in range(len(parts)):
            model.get_submodule(".".join(parts[:end])).training = True
    return bool(unused)


def _unused(seen: Trace) -> list[str]:
    """Return the parameters that no operator has used; those of a single number have no channels."""
    used = {axis.tensor for axis in seen.axes}
    return [n for n, shape in seen.parameters.items() if n not in used and max(shape, default=0) > 1]


def with_unused(seen: Trace, error: Exception | None = None) -> Trace:
    """Return a trace that names the modules which did not run: the outermost in which no parameter was used."""
    running = {""}
    for axis in seen.axes:
        parts = axis.tensor.split(".")
        running |= {".".join(parts[:end]) for end in range(1, len(parts))}
    widths: dict[str, int] = {}
    for name in _unused(seen):
        parts = name.split(".")[:-1]
        around = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        module = next((path for path in around if path not in running), None)
        if module is not None:
            shape = seen.parameters[name]
            widths[module] = widths.get(module, 0) + (shape[0] if len(shape) > 1 else 0)
    words = None if error is None else (str(error).strip().splitlines() or [type(error).__name__])[0]
    return replace(seen, not_run=tuple(NotRun(module, width, words) for module, width in widths.items()))


def merge(seen: Trace, other: Trace) -> Trace:
    """Return a trace with what another trace of the same model adds to it."""
    axes, number = renumber(seen, other)
    if len(axes) == len(seen.axes):
        return seen
    known = {n.module for n in seen.integers}
    integers = [
        Integer(n.module, n.attribute, n.item, number[n.atoms])
        for n in other.integers
        if n.module not in known
    ]
    freezes = [Freeze(number[f.atoms], f.why, len(seen.ops)) for f in other.freezes]
    return replace(
        seen,
        axes=tuple(axes),
        atom_count=axes[-1].first + axes[-1].size,
        ties=np.concatenate([seen.ties, number[other.ties]], axis=1),
        sums=np.concatenate([seen.sums, number[other.sums]], axis=1),
        integers=(*seen.integers, *integers),
        freezes=(*seen.freezes, *freezes),
        weight_norms=tuple(dict.fromkeys((*seen.weight_norms, *other.weight_norms))),
    )


def renumber(seen: Trace, other: Trace) -> tuple[list[Axis], Atoms]:
    """Return all axes, and for every atom of the other trace its number among them."""
    axes, count = list(seen.axes), seen.atom_count
    first = {(a.tensor, a.axis): a.first for a in axes}
    number = np.empty(other.atom_count, np.int64)
    for a in other.axes:
        start = first.get((a.tensor, a.axis), count)
        if start == count:
            axes.append(Axis(a.tensor, a.axis, a.size, count))
            count += a.size
        number[a.first : a.first + a.size] = np.arange(start, start + a.size)
    return axes, number
