"""Operators that put tensors side by side, or constants around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimilar.graph.labels import CONSTANT, NONE, Labels, axes_of, compact
from slimilar.graph.reasons import unknown
from slimilar.graph.rules.elementwise import combine
from slimilar.graph.rules.table import Call, resolve, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


@rule("constant_pad_nd")
def constant_pad(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through padding; padded channels belong to nobody."""
    x, amounts = call.x, call["pad"]
    found = []
    for factor in call.labels(x):
        wanted = [
            a if factor.shape[x.ndim - 1 - i // 2] > 1 else 0 for i, a in enumerate(amounts)
        ]  # axes without labels stay compact
        found.append(torch.nn.functional.pad(factor, wanted, value=CONSTANT))
    return [tuple(found)]


@rule("cat", "concat", "stack")
def cat(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Put labels side by side; a tensor without labels contributes constants.

    Along an axis without channels (batch, tokens, space) the channels of all parts have to leave together.
    """
    tensors: list[Tensor] = list(call.args[0] if call.args else call.kwargs["tensors"])
    ndim = call.outs[0].ndim
    axis = call["dim"] % ndim
    labels = [call.labels(x) for x in tensors]
    if call.name == "aten.stack":
        labels = [tuple(f.unsqueeze(axis) for f in found) for found in labels]
        sizes = [[*x.shape[:axis], 1, *x.shape[axis:]] for x in tensors]
    else:
        kept = [(x, found) for x, found in zip(tensors, labels, strict=True) if x.ndim == ndim]
        labels, sizes = [found for _, found in kept], [list(x.shape) for x, _ in kept]
    if not any(axis in axes_of(f) for found in labels for f in found):
        return [combine(policy, labels, [_without(size, axis) for size in sizes], sums=False)]
    if any(len(found) > 1 for found in labels):
        return [_cat_factors(policy, call, labels, sizes, axis)]
    varying = {a for found in labels for f in found for a in axes_of(f)} | {axis}
    parts = [_part(found, size, varying) for found, size in zip(labels, sizes, strict=True)]
    return [(resolve(policy, call, compact(torch.cat(parts, axis))),)]


def _without(size: list[int], axis: int) -> list[int]:
    return [1 if a == axis else n for a, n in enumerate(size)]


def _part(labels: Labels, size: list[int], varying: set[int]) -> Tensor:
    shape = [n if a in varying else 1 for a, n in enumerate(size)]
    return labels[0].expand(shape) if labels else torch.full(shape, CONSTANT)


def _cat_factors(
    policy: LabelPolicy, call: Call, labels: list[Labels], sizes: list[list[int]], axis: int
) -> Labels:
    """Concatenate tensors with several factors each (weights): along one of them, the others tied."""
    along = [touching(found, [axis], len(sizes[0])) for found in labels]
    if any(len(a) > 1 or len(axes_of(f)) > 1 for a, _ in along for f in a):
        for found in labels:
            policy.freeze(found, unknown(call.name))
        return NONE
    parts = [_part(tuple(a), size, {axis}) for (a, _), size in zip(along, sizes, strict=True)]
    others = [tuple(rest) for _, rest in along]
    return (torch.cat(parts, axis), *combine(policy, others, sizes, sums=False))
