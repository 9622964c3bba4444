"""Operators that take a tensor apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from torch import Tensor

from slimilar.graph.labels import Labels, axes_of
from slimilar.graph.reasons import fixed_size
from slimilar.graph.rules.moving import moved
from slimilar.graph.rules.table import Call, note_piece, note_runs, rule, tie_blocks, tie_modulo, touching

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def _tie_relative(policy: LabelPolicy, call: Call, factor: Tensor, places: Sequence[int]) -> bool:
    """Bind channels so that cutting an axis at the same *relative* places still cuts between the same channels.

    Code that computes the places from the shape (chunk, `x[:, : c // 2]`) then works at any width. Code with fixed
    numbers does not; probing shows it. Return whether there is such a relation.
    """
    period = math.gcd(factor.shape[call.dim], *places)
    if period > 1:
        tie_modulo(policy, factor, call.dim, period)
    return period > 1


@rule("slice", "narrow")
def slice_(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through `x[:, start:end:step]`."""
    x, axis, step = call.x, call.dim, call["step"]
    size = x.shape[axis]
    start, end, _ = slice(call["start"], call["end"]).indices(size)
    for factor in call.labels(x):
        if factor.shape[axis] == 1 or (start, end, step) == (0, size, 1):
            continue
        if step > 1:
            _stride(policy, call, factor)
        else:
            _cut(policy, call, factor, (start, max(start, end)))
            note_piece(policy, factor.narrow(axis, start, max(0, end - start)))
    return [tuple(moved(call, x, f)[0] for f in call.labels(x))]


def _stride(policy: LabelPolicy, call: Call, factor: Tensor) -> None:
    note_runs(policy, factor, call.dim, range(factor.shape[call.dim]))
    if call.level > 0 or factor.shape[call.dim] % call["step"]:
        policy.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    else:
        tie_blocks(policy, factor, call.dim, call["step"])


def _cut(policy: LabelPolicy, call: Call, factor: Tensor, places: Sequence[int]) -> None:
    """Assume that places follow the shape; then that the module holds them; then that it holds the whole width."""
    note_runs(policy, factor, call.dim, places)
    if call.level > 1:
        policy.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    elif call.level == 1 or not call.holds_sizes:
        _tie_relative(policy, call, factor, places)


@rule("split", "unsafe_split", "chunk", "tensor_split")
def split(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through an even split."""
    sizes = [out.shape[call.dim] for out in call.outs]
    for factor in call.labels(call.x):
        note_runs(policy, factor, call.dim, accumulate(sizes))
        if factor.shape[call.dim] > 1 and (call.level > 0 or not _tie_relative(policy, call, factor, sizes)):
            policy.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    return _pieces(policy, call)


@rule("split_with_sizes")
def split_with_sizes(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through a split by a list; the list may be a module's own numbers, which can be mended."""
    for factor in call.labels(call.x):
        note_runs(policy, factor, call.dim, accumulate(call["split_sizes"]))
        if factor.shape[call.dim] > 1 and (
            call.level > 1
            or (call.level == 1 and not _tie_relative(policy, call, factor, call["split_sizes"]))
        ):
            policy.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    return _pieces(policy, call)


@rule("unbind")
def unbind(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through taking an axis apart; the axis itself keeps its length."""
    _keep_rows(policy, call, "takes channels apart")
    return _pieces(policy, call)


@rule("select")
def select(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through `x[:, 3]`; where other axes carry the channels too, the rows stay."""
    _keep_rows(policy, call, "takes a fixed channel")
    return [tuple(moved(call, call.x, f)[0] for f in call.labels(call.x))]


def _keep_rows(policy: LabelPolicy, call: Call, otherwise: str) -> None:
    found, _ = touching(call.labels(call.x), [call.dim], call.x.ndim)
    for factor in found:
        if len(axes_of(factor)) > 1:
            policy.bind(factor, factor.narrow(call.dim, 0, 1))
        else:
            policy.freeze((factor,), fixed_size(f"operator {call.name} {otherwise}"))


def _pieces(policy: LabelPolicy, call: Call) -> list[Labels]:
    found = [moved(call, call.x, f) for f in call.labels(call.x)]
    for factor, parts in zip(call.labels(call.x), found, strict=True):
        for part in parts if factor.shape[call.dim] > 1 else ():
            note_piece(policy, part)
    return [tuple(factor[i] for factor in found) for i in range(len(call.outs))]
