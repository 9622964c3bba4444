"""Operators that take elements by constant indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimilar.graph.labels import NONE, Labels, compact, on_axis
from slimilar.graph.reasons import fixed_size, unknown
from slimilar.graph.records import Write
from slimilar.graph.rules.table import Call, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.tracer import Tracer


@rule("index_select", "index")
def index(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through constant indices.

    Indices that are a buffer choose channels of their own (a channel selection): their labels are the output's,
    and what they choose from stays. Other indices are fixed numbers in the code, which probing will show.
    """
    x, indices = call.x, _indices(call)
    places = [axis for axis, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    found, rest = touching(t.labels(x), places, x.ndim)
    simple = len(given) == 1 and given[0].ndim == 1
    if not simple or (found and given[0].dtype is torch.bool):
        return [_index_many(t, call, found, rest, indices)]
    return [_index_one(t, call, found, rest, places[0], given[0]) if found else tuple(rest)]


def _indices(call: Call) -> list[Tensor | None]:
    x = call.x
    if call.name.startswith("aten.index_select"):
        indices: list[Tensor | None] = [None] * x.ndim
        indices[call.dim] = call["index"]
        return indices
    return [*call["indices"], *[None] * (x.ndim - len(call["indices"]))]


def _index_one(
    t: Tracer, call: Call, found: list[Tensor], rest: list[Tensor], axis: int, index: Tensor
) -> Labels:
    own = t.labels(index)
    if own and t.value(index).name is not None:
        t.freeze(tuple(found), fixed_size("read by a channel selection"))
        vector = own[0].reshape(-1)
        t.writes.append(Write(len(t.ops), axis, vector.numpy()))
        return (on_axis(vector, axis, call.x.ndim), *rest)
    if t.level(call.signature) > 0 or t.value(index).dynamic:
        t.freeze(tuple(found), fixed_size(f"operator {call.name} takes channels by fixed positions"))
        if t.value(index).dynamic:
            return tuple(rest)
    numbers = t.constants(index)
    for factor in found:
        t.cut(factor, axis, [p for i in numbers.tolist() for p in (i, i + 1) if i >= 0])
    return (*(compact(f.index_select(axis, numbers)) for f in found), *rest)


def _index_many(
    t: Tracer, call: Call, found: list[Tensor], rest: list[Tensor], indices: Sequence[Tensor | None]
) -> Labels:
    """Index several axes at once: axes after the indexed ones keep their labels and their place from the end."""
    t.freeze(tuple(found), fixed_size(f"operator {call.name} takes channels by fixed positions"))
    last = max(axis for axis, i in enumerate(indices) if i is not None)
    behind = [f for f in rest if all(n == 1 for n in f.shape[: last + 1])]
    t.freeze(tuple(f for f in rest if all(f is not b for b in behind)), unknown(call.name))
    before = call.outs[0].ndim - (call.x.ndim - last - 1)
    return (
        tuple(f.reshape((1,) * before + tuple(f.shape[last + 1 :])) for f in behind) if before >= 0 else NONE
    )
