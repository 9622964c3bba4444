"""Operators that combine tensors position by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from slimilar.graph.labels import NONE, Labels, align, axes_of
from slimilar.graph.reasons import fixed_size
from slimilar.graph.rules.table import Call, rule, tie_modulo

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy

_ADDITIONS = {"aten.add", "aten.add_", "aten.sub", "aten.sub_"}


def combine(
    policy: LabelPolicy, labels: Sequence[Labels], sizes: Sequence[Sequence[int]], sums: bool
) -> Labels:
    """Merge the labels of tensors that are combined position by position, with broadcasting."""
    found: list[Tensor] = []
    for one in labels:
        for factor in one:
            found = _merge(policy, found, factor, sums)
    for factor in found:
        for one, size in zip(labels, sizes, strict=True):
            _check_cover(policy, factor, one, size)
    return tuple(found)


def _merge(policy: LabelPolicy, found: list[Tensor], factor: Tensor, sums: bool) -> list[Tensor]:
    meets = [g for g in found if set(axes_of(g)) & set(axes_of(factor))]
    if not meets:
        return [*found, factor]
    for other in meets:
        policy.tie(other, factor, sums)
    if len(meets) > 1:  # one operand varies along two axes, the other has them apart
        policy.freeze(tuple(meets), fixed_size("combined with channels on two axes"))
    largest = max([*meets, factor], key=lambda f: f.numel())
    return [*(g for g in found if all(g is not m for m in meets)), largest]


def _check_cover(policy: LabelPolicy, factor: Tensor, labels: Labels, size: Sequence[int]) -> None:
    """Keep channels that meet a tensor which has as many entries of its own there."""
    covered = {a for f in labels for a in axes_of(f)}
    axes = axes_of(factor)
    fixed = [a for a in axes if size[a] > 1 and a not in covered]
    if len(fixed) == len(axes):
        policy.freeze((factor,), fixed_size("combined with a tensor whose channels are fixed"))
    else:
        for axis in fixed:
            policy.bind(factor, factor.narrow(axis, 0, 1))


@rule(
    "hardswish", "_prelu_kernel", "prelu", "log_sigmoid_forward", "floor_divide", "rrelu_with_noise", "where",
    "bernoulli", "relu6",
)  # fmt: skip
def elementwise(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Tie what is combined position by position."""
    ndim = call.outs[0].ndim if call.outs else 0
    operands = [x for x in call.ins if x.ndim <= ndim]
    if len(operands) == 1:
        return [call.labels(operands[0])] * len(call.outs)
    values = [call.value(x) for x in operands]
    dynamic = sum(v.dynamic and bool(v.labels) for v in values) > 1
    labels = [tuple(align(f, ndim) for f in v.labels) for v in values]
    sizes = [[1] * ndim if v.uniform else _own_sizes(x, ndim) for x, v in zip(operands, values, strict=True)]
    found = combine(policy, labels, sizes, sums=dynamic and call.name in _ADDITIONS)
    return [found] * len(call.outs)


def _own_sizes(x: Tensor, ndim: int) -> list[int]:
    """Return the sizes of a tensor, aligned to others; 1 for axes along which it is one tensor, expanded."""
    own = [size if stride else 1 for size, stride in zip(x.shape, x.stride(), strict=True)]
    return [1] * (ndim - len(own)) + own


@rule("copy")
def copy(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Overwrite a tensor; the trace sees to those that share its memory."""
    return [tuple(align(f, call.x.ndim) for f in call.labels(call.ins[1]))]


@rule("fill", "zero")
def fill(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Overwrite by one number: nobody's channels any more, but their place stays."""
    policy.freeze(call.labels(call.x), fixed_size(f"operator {call.name} overwrites"))
    return [NONE]


@rule("glu")
def glu(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Tie the two halves."""
    half = call.x.shape[call.dim] // 2
    found = []
    for factor in call.labels(call.x):
        if factor.shape[call.dim] > 1:
            tie_modulo(policy, factor, call.dim, half)
            factor = factor.narrow(call.dim, 0, half)
        found.append(factor)
    return [tuple(found)]
