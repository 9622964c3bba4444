"""The state of recurrent layers: it starts as zeros, whose number a module holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from slimilar.graph.records import Integer
from slimilar.graph.rules.table import Call

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def hold_state(policy: LabelPolicy, call: Call, zeros: Tensor, axis: int, weight: Tensor) -> None:
    """Let the number of zeros that a weight reads shrink with it.

    One number is for all layers and directions of a recurrent module, so all of them lose the same units. Where no
    module holds it, probing shows that the code works at this width only.
    """
    width, path = zeros.shape[axis], call.value(zeros).zeros_of or ""
    for owner in dict.fromkeys((path, call.module)):
        for attribute, item in _held(call, owner, width):
            policy.note(Integer(owner, attribute, item, weight.numpy()))


def _held(call: Call, path: str, width: int) -> list[tuple[str, int | None]]:
    module = call.modules[path]
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return [("hidden_size", None)] if module.hidden_size == width else []
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
