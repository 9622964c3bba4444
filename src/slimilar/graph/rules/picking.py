"""Operators that take elements by constant indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimilar.graph.labels import NONE, Labels, compact, on_axis
from slimilar.graph.reasons import fixed_size, unknown
from slimilar.graph.records import Write
from slimilar.graph.rules.table import Call, note_runs, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


@rule("index_select", "index")
def index(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through constant indices.

    Indices that are a buffer choose channels of their own (a channel selection): their labels are the output's,
    and what they choose from stays. Other indices are fixed numbers in the code, which probing will show.
    """
    x, indices = call.x, _indices(call)
    places = [axis for axis, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    found, rest = touching(call.labels(x), places, x.ndim)
    simple = len(given) == 1 and given[0].ndim == 1
    if not simple or (found and given[0].dtype is torch.bool):
        return [_index_many(policy, call, found, rest, indices)]
    return [_index_one(policy, call, found, rest, places[0], given[0]) if found else tuple(rest)]


def _indices(call: Call) -> list[Tensor | None]:
    x = call.x
    if call.name.startswith("aten.index_select"):
        indices: list[Tensor | None] = [None] * x.ndim
        indices[call.dim] = call["index"]
        return indices
    return [*call["indices"], *[None] * (x.ndim - len(call["indices"]))]


def _index_one(
    policy: LabelPolicy, call: Call, found: list[Tensor], rest: list[Tensor], axis: int, index: Tensor
) -> Labels:
    own = call.labels(index)
    if own and call.value(index).name is not None:
        policy.freeze(tuple(found), fixed_size("read by a channel selection"))
        vector = own[0].reshape(-1)
        policy.note(Write(call.op, axis, vector.numpy()))
        return (on_axis(vector, axis, call.x.ndim), *rest)
    table = (
        own and not call.knows(index) and not call.value(call.x).dynamic
    )  # of biases for relative positions
    if call.level > 0 or call.value(index).dynamic or table:
        policy.freeze(tuple(found), fixed_size(f"operator {call.name} takes channels by fixed positions"))
        if call.value(index).dynamic or table:
            return tuple(rest)
    numbers = call.numbers(index)
    for factor in found:
        note_runs(policy, factor, axis, [p for i in numbers.tolist() for p in (i, i + 1) if i >= 0])
    return (*(compact(f.index_select(axis, numbers)) for f in found), *rest)


def _index_many(
    policy: LabelPolicy, call: Call, found: list[Tensor], rest: list[Tensor], indices: Sequence[Tensor | None]
) -> Labels:
    """Index several axes at once: axes after the indexed ones keep their labels and their place from the end."""
    policy.freeze(tuple(found), fixed_size(f"operator {call.name} takes channels by fixed positions"))
    last = max(axis for axis, i in enumerate(indices) if i is not None)
    behind = [f for f in rest if all(n == 1 for n in f.shape[: last + 1])]
    policy.freeze(tuple(f for f in rest if all(f is not b for b in behind)), unknown(call.name))
    before = call.outs[0].ndim - (call.x.ndim - last - 1)
    return (
        tuple(f.reshape((1,) * before + tuple(f.shape[last + 1 :])) for f in behind) if before >= 0 else NONE
    )
