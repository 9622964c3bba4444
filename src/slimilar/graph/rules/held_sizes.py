"""Whole numbers that modules hold and that have to shrink with the channels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from slimilar.graph.assumptions import HeldNumber
from slimilar.graph.rules.cutting import slice_, split, split_with_sizes
from slimilar.graph.rules.products import convolution
from slimilar.graph.rules.state import holding
from slimilar.graph.rules.table import RULES, Call, along_axis, shrinking_axis

Held = tuple[str, str, int | None, Any]  # module, attribute, item of a list, the atoms that it counts


def held_integers(call: Call) -> list[Held]:
    """Return the whole numbers of the running module that equal a size which shrinks with the channels here.

    `x.split((self.c, self.c), 1)` works at any width if `self.c` shrinks along. Whether that is what the code
    means is for probing to show.
    """
    if RULES.get(call.name) is split_with_sizes and (whole := _held_list(call)):
        return whole
    found = []
    for number, vector in _sizes(call):
        path = call.module
        while not (held := holding(call.modules[path], number)) and path:
            path = path.rpartition(".")[0]
        found += [
            (path, attribute, item, vector.numpy())
            for attribute, item in held
            if HeldNumber(call.signature[1], attribute, item) not in call.context.assumptions.by_chance
        ]
    return found


def _held_list(call: Call) -> list[Held]:
    """Return the entries of a list that is, as a whole, the list of sizes."""
    vector, _ = along_axis(call.labels(call.x), call.dim, call.x.ndim)
    sizes = list(call["split_sizes"])
    for name, value in vars(call.modules[call.module]).items():
        if vector is not None and type(value) in (list, tuple) and list(value) == sizes:
            pieces = vector.split(sizes)
            return [(call.module, name, i, piece.numpy()) for i, piece in enumerate(pieces)]
    return []


def _sizes(call: Call) -> list[tuple[int, Tensor]]:
    """Return the sizes in a call that shrink with channels, each with the labels that it counts."""
    x = call.ins[0]
    function = RULES.get(call.name)
    if function is convolution:
        vector, _ = along_axis(call.labels(x), 1, x.ndim)
        return [] if vector is None else [(call["groups"], vector[:: x.shape[1] // call["groups"]])]
    if function is slice_:
        vector, _ = along_axis(call.labels(x), call.dim, x.ndim)
        cuts = slice(call["start"], call["end"]).indices(x.shape[call.dim])[:2]
        return [] if vector is None else [(n, vector[:n]) for n in cuts if 0 < n < len(vector)]
    tensors = (
        [*call.outs, x] if function is split else call.outs
    )  # split(self.width // 2) holds the whole width
    found = []
    for tensor in tensors:
        for factor in call.labels(tensor):
            axis = shrinking_axis(call, factor)
            if axis is not None:
                lead = tuple(slice(None) if a == axis else slice(0, 1) for a in range(factor.ndim))
                found.append((tensor.shape[axis], factor[lead].reshape(-1)))
    return found
