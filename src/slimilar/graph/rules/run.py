"""Look an operator up and apply its rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from slimilar.graph.labels import NONE, Labels
from slimilar.graph.reasons import fixed_size, unknown
from slimilar.graph.records import Value
from slimilar.graph.rules.cutting import select, slice_, split, unbind
from slimilar.graph.rules.elementwise import elementwise
from slimilar.graph.rules.joining import cat
from slimilar.graph.rules.moving import move, same, view
from slimilar.graph.rules.norms import batch_norm
from slimilar.graph.rules.table import RULES, Call

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


@cache
def is_pointwise(func: Any) -> bool:
    """Tell whether an operator combines its tensors position by position."""
    return torch.Tag.pointwise in func.tags


def apply(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Return the labels of every output of a call."""
    outs = call.outs
    if not any(value.labels for value in call.seen):
        return [NONE] * len(outs)
    function = RULES.get(call.name)
    if function is None and is_pointwise(call.func):
        function = elementwise
    if function is None or call.is_fixed:
        why = fixed_size(f"operator {call.name} works at fixed sizes") if function else unknown(call.name)
        for x in call.ins:
            policy.freeze(call.labels(x), why)
        return [NONE] * len(outs)
    found = function(policy, call)
    return found if len(found) == len(outs) else [found[0], *[NONE] * (len(outs) - 1)]


def is_widthless(call: Call) -> bool:
    """Tell whether a call treats its channels alike however many there are, so that none can arrive elsewhere."""
    if call.name == "aten.convolution":
        return call["groups"] == 1 and not call["transposed"]
    function = RULES.get(call.name, elementwise)
    return function in (batch_norm, cat) or (function is elementwise and is_pointwise(call.func))


def is_depthwise(name: str, given: Sequence[Any], seen: Sequence[Value]) -> bool:
    """Tell whether a call convolves every channel by itself: its position says where it goes, at any width."""
    return (
        name == "aten.convolution"
        and len(given) == 9
        and not given[6]  # transposed
        and given[8] == seen[0].shape[1] == seen[1].shape[0] > 1  # groups
    )


_UNIFORM = {
    "aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.zeros_like", "aten.ones_like", "aten.full_like",
    "aten.empty_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.scalar_tensor",
    "aten.fill", "aten.fill_", "aten.zero_",
}  # fmt: skip


def is_uniform(call: Call) -> bool:
    """Tell whether every element of the output is one number."""
    if call.name in _UNIFORM:
        return True
    if not call.seen or not all(v.uniform or math.prod(v.shape) == 1 for v in call.seen):
        return False
    return RULES.get(call.name) in _MOVING or is_pointwise(call.func)


_MOVING = (move, view, same, unbind, select, slice_, split)
_ZEROS = {"aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.zero_"}


def maker_of_zeros(call: Call) -> str | None:
    """Return the module that made the zeros which an output of one number is; None if it is another number."""
    if call.name in _UNIFORM:
        return call.module if call.name in _ZEROS else None
    return call.seen[0].zeros_of if call.seen and RULES.get(call.name) in _MOVING else None
