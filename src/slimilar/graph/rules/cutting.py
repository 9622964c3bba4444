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
from slimilar.graph.rules.table import Call, rule, tie_blocks, tie_modulo, touching

if TYPE_CHECKING:
    from slimilar.graph.tracer import Tracer


def _tie_relative(t: Tracer, call: Call, factor: Tensor, places: Sequence[int]) -> bool:
    """Bind channels so that cutting an axis at the same *relative* places still cuts between the same channels.

    Code that computes the places from the shape (chunk, `x[:, : c // 2]`) then works at any width. Code with fixed
    numbers does not; probing shows it. Return whether there is such a relation.
    """
    period = math.gcd(factor.shape[call.dim], *places)
    if period > 1:
        tie_modulo(t, factor, call.dim, period)
    return period > 1


@rule("slice", "narrow")
def slice_(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through `x[:, start:end:step]`."""
    x, axis, step = call.x, call.dim, call["step"]
    size = x.shape[axis]
    start, end, _ = slice(call["start"], call["end"]).indices(size)
    for factor in t.labels(x):
        if factor.shape[axis] == 1 or (start, end, step) == (0, size, 1):
            continue
        if step > 1:
            _stride(t, call, factor)
        else:
            _cut(t, call, factor, (start, max(start, end)))
            t.piece(factor.narrow(axis, start, max(0, end - start)))
    return [tuple(moved(call, x, f)[0] for f in t.labels(x))]


def _stride(t: Tracer, call: Call, factor: Tensor) -> None:
    t.cut(factor, call.dim, range(factor.shape[call.dim]))
    if t.level(call.signature) > 0 or factor.shape[call.dim] % call["step"]:
        t.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    else:
        tie_blocks(t, factor, call.dim, call["step"])


def _cut(t: Tracer, call: Call, factor: Tensor, places: Sequence[int]) -> None:
    """Assume that places follow the shape; then that the module holds them; then that it holds the whole width."""
    t.cut(factor, call.dim, places)
    level, mended = t.level(call.signature), call.signature in t.choices.mend
    if level > 1:
        t.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    elif level == 1 or not mended:
        _tie_relative(t, call, factor, places)


@rule("split", "unsafe_split", "chunk", "tensor_split")
def split(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through an even split."""
    sizes = [out.shape[call.dim] for out in call.outs]
    for factor in t.labels(call.x):
        t.cut(factor, call.dim, accumulate(sizes))
        if factor.shape[call.dim] > 1 and (
            t.level(call.signature) > 0 or not _tie_relative(t, call, factor, sizes)
        ):
            t.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    return _pieces(t, call)


@rule("split_with_sizes")
def split_with_sizes(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a split by a list; the list may be a module's own numbers, which can be mended."""
    level = t.level(call.signature)
    for factor in t.labels(call.x):
        t.cut(factor, call.dim, accumulate(call["split_sizes"]))
        if factor.shape[call.dim] > 1 and (
            level > 1 or (level == 1 and not _tie_relative(t, call, factor, call["split_sizes"]))
        ):
            t.freeze((factor,), fixed_size(f"operator {call.name} cuts channels at fixed positions"))
    return _pieces(t, call)


@rule("unbind")
def unbind(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through taking an axis apart; the axis itself keeps its length."""
    _keep_rows(t, call, "takes channels apart")
    return _pieces(t, call)


@rule("select")
def select(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through `x[:, 3]`; where other axes carry the channels too, the rows stay."""
    _keep_rows(t, call, "takes a fixed channel")
    return [tuple(moved(call, call.x, f)[0] for f in t.labels(call.x))]


def _keep_rows(t: Tracer, call: Call, otherwise: str) -> None:
    found, _ = touching(t.labels(call.x), [call.dim], call.x.ndim)
    for factor in found:
        if len(axes_of(factor)) > 1:
            t.bind(factor, factor.narrow(call.dim, 0, 1))
        else:
            t.freeze((factor,), fixed_size(f"operator {call.name} {otherwise}"))


def _pieces(t: Tracer, call: Call) -> list[Labels]:
    found = [moved(call, call.x, f) for f in t.labels(call.x)]
    for factor, parts in zip(t.labels(call.x), found, strict=True):
        for part in parts if factor.shape[call.dim] > 1 else ():
            t.piece(part)
    return [tuple(factor[i] for factor in found) for i in range(len(call.outs))]
