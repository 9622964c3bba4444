"""The state of recurrent layers: it starts as zeros, whose number a module holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slimilar.graph.labels import CONSTANT
from slimilar.graph.reasons import fixed_size
from slimilar.graph.records import Integer, ZeroPart
from slimilar.graph.rules.table import RULES, Call

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def hold_state(policy: LabelPolicy, call: Call, zeros_of: str, weight: Tensor) -> None:
    """Let the number of zeros that a weight reads shrink with it.

    One number is for all layers and directions of a recurrent module, so all of them lose the same units. Where no
    module holds it, probing shows that the code works at this width only.
    """
    for owner in dict.fromkeys((zeros_of, call.module, *_above(call.module))):
        for attribute, item in _held(call, owner, weight.numel()):
            policy.note(Integer(owner, attribute, item, weight.numpy()))


def hold_projected(policy: LabelPolicy, call: Call, weight: Tensor) -> None:
    """Let all layers and directions of an LSTM whose state is projected lose the same of what is projected.

    Of that more has to stay than the projection is wide: torch knows a projection by the two sizes being different.
    """
    module = call.modules[call.module]
    if isinstance(module, nn.LSTM) and call.outs[0].shape[-1] == module.proj_size:
        policy.note(Integer(call.module, "hidden_size", None, weight.numpy()))
        policy.freeze((weight[: module.proj_size + 1],), fixed_size("an LSTM is wider than its projection"))


def _above(path: str) -> Iterator[str]:
    """Yield the module around a layer: a cell made of layers, whose own method its owner calls to make zeros."""
    if path:
        yield path.rpartition(".")[0]


def zero_parts(call: Call) -> tuple[ZeroPart, ...]:
    """Return where zeros stand in a tensor that was concatenated from them and others: a state beside an input."""
    if RULES.get(call.name) is not RULES["aten.cat"] or call.name == "aten.stack":
        return ()
    axis, start, found = call["dim"] % call.outs[0].ndim, 0, []
    for x, value in zip(call.ins, call.seen, strict=True):
        if x.ndim == call.outs[0].ndim:
            if value.zeros_of is not None:
                found.append(ZeroPart(axis, start, start + x.shape[axis], value.zeros_of))
            start += x.shape[axis]
    return tuple(found)


def with_state(
    policy: LabelPolicy, call: Call, x: Tensor, axis: int, vector: Tensor | None, weight: Tensor
) -> Tensor | None:
    """Return the labels of what a weight reads, where zeros stand for whichever channels of a state it reads there."""
    parts = [part for part in call.value(x).zero_parts if part.axis == axis % x.ndim]
    if not parts:
        return vector
    found = torch.full_like(weight, CONSTANT) if vector is None else vector.clone()
    for part in parts:
        inside = slice(part.start, part.stop)
        found[inside] = weight[inside]
        hold_state(policy, call, part.zeros_of, weight[inside])
    return found


def _held(call: Call, path: str, width: int) -> list[tuple[str, int | None]]:
    module = call.modules[path]
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        size = "proj_size" if getattr(module, "proj_size", 0) else "hidden_size"
        return [(size, None)] if getattr(module, size) == width else []
    return [] if type(module).__module__.startswith("torch.nn") else holding(module, width)


def holding(module: nn.Module, number: int) -> list[tuple[str, int | None]]:
    """Return the attributes of a module, or entries of its lists, that are a whole number."""
    held: list[tuple[str, int | None]] = []
    for name, value in vars(module).items():
        if type(value) is int and value == number:
            held.append((name, None))
        elif type(value) in (list, tuple) and all(type(v) is int for v in value):
            held += [(name, i) for i, v in enumerate(value) if v == number]
    return held
