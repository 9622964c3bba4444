"""Operators that only give every element a new place: they act on the labels by being called on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from slimilar.graph.labels import NONE, Labels, axes_of, compact
from slimilar.graph.reasons import fixed_size
from slimilar.graph.rules.table import Call, resolve, rule
from slimilar.utils.spectral_norms import is_spectral

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def moved(call: Call, x: Tensor, factor: Tensor) -> list[Tensor]:
    """Call the operator on a factor of `x` instead of `x`."""
    full = factor.expand(x.shape)
    args = tuple(full if a is x else a for a in call.args)
    kwargs = {k: full if a is x else a for k, a in call.kwargs.items() if k != "memory_format"}
    result = call.func(*args, **kwargs)
    return [compact(f) for f in (result if isinstance(result, list | tuple) else [result])]


@rule("permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "movedim")
def move(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through an operator that gives every axis a new place."""
    return [tuple(moved(call, call.x, f)[0] for f in call.labels(call.x))]


@rule("view", "_unsafe_view", "reshape", "view_as", "unflatten", "flatten", "_reshape_alias")
def view(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through an operator that divides and joins axes."""
    x, out = call.x, call.outs[0]
    if x.dtype != out.dtype:
        policy.freeze(call.labels(x), fixed_size(f"operator {call.name} reads the bits of another type"))
        return [NONE]
    found = [viewed(f, x.shape, out.shape) for f in call.labels(x)]
    return [
        tuple(resolve(policy, call, f) for f in (_apart(policy, call, found) if len(found) > 1 else found))
    ]


def _apart(policy: LabelPolicy, call: Call, factors: list[Tensor]) -> list[Tensor]:
    """Keep factors apart: where two came to lie on one axis, at most one of them can say which channels leave."""
    taken = Counter(axis for f in factors for axis in axes_of(f))
    clash = [f for f in factors if any(taken[axis] > 1 for axis in axes_of(f))]
    free = [f for f in clash if not policy.is_frozen(f)]
    if is_spectral(
        call.modules[call.module]
    ):  # a kernel becomes a matrix: its inputs may leave, its taps stay
        policy.freeze(tuple(free[1:]), fixed_size("an axis of a kernel"))
        free = free[:1]
    if len(free) > 1:
        policy.freeze(tuple(free), fixed_size(f"operator {call.name} joins two axes of channels"))
    kept = (free or clash)[:1]
    return [f for f in factors if all(f is not c for c in clash) or any(f is k for k in kept)]


def viewed(factor: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Reshape a factor; axes that carry no labels, before and after, are left out of the work."""
    full: list[int] = []
    result: list[int] = []
    for ins, outs in _blocks(before, after):
        varies = any(factor.shape[a] > 1 for a in ins)
        full += [before[a] if varies else 1 for a in ins]
        result += [after[a] if varies else 1 for a in outs]
    return compact(factor.expand(full).reshape(result))


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Divide the axes of a reshape into the smallest runs that hold the same number of elements.

    >>> _blocks((2, 12, 5, 5), (2, 3, 4, 25))
    [([0], [0]), ([1], [1, 2]), ([2, 3], [3])]
    """
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs, have, want = [], [], 1, 1
        while True:
            if i < len(before) and (have <= want or j >= len(after)):
                have *= before[i]
                ins.append(i)
                i += 1
            elif j < len(after):
                want *= after[j]
                outs.append(j)
                j += 1
            if (have == want and ins and outs) or (i >= len(before) and j >= len(after)):
                break
        found.append((ins, outs))
    return found


@rule(
    "clone", "contiguous", "_to_copy", "detach", "alias", "lift_fresh", "dropout", "native_dropout", "to",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
)  # fmt: skip
def same(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through a copy, or to a tensor of the same shape: it has as many channels."""
    return [call.labels(call.x)] * len(call.outs)


@rule("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
def new(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Make a tensor of a given shape; only the type is taken from the old one."""
    return [NONE]
