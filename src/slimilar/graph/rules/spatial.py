"""Operators over space, reductions, and operators along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from slimilar.graph.labels import NONE, Labels, axes_of
from slimilar.graph.reasons import mixes, unknown
from slimilar.graph.records import Reduction
from slimilar.graph.rules.elementwise import elementwise
from slimilar.graph.rules.table import Call, over_space, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def _spatial(names: Sequence[str], axes: int) -> None:
    def spatial(policy: LabelPolicy, call: Call) -> list[Labels]:
        x = call.x
        mixed, rest = over_space(policy, call.labels(x), range(x.ndim - axes, x.ndim), x.ndim)
        policy.freeze(tuple(mixed), mixes(call.name))
        for other in call.ins[1:]:
            policy.freeze(call.labels(other), unknown(call.name))
        return [tuple(rest)] * len(call.outs)

    rule(*names)(spatial)


for _d in (1, 2, 3):
    _spatial(
        [
            f"max_pool{_d}d_with_indices", f"max_pool{_d}d", f"avg_pool{_d}d", f"_adaptive_avg_pool{_d}d",
            f"adaptive_avg_pool{_d}d", f"adaptive_max_pool{_d}d", f"fractional_max_pool{_d}d",
            f"upsample_nearest{_d}d", f"_upsample_nearest_exact{_d}d", f"reflection_pad{_d}d",
            f"replication_pad{_d}d",
        ],
        _d,
    )  # fmt: skip
_spatial(["upsample_linear1d"], 1)
_spatial(
    ["upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa"], 2
)
_spatial(["upsample_trilinear3d"], 3)
_spatial(["grid_sampler_2d"], 2)
_spatial(["grid_sampler_3d"], 3)


@rule("max_unpool2d", "max_unpool3d")
def max_unpool(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Put every channel's maxima back by its own indices."""
    return elementwise(policy, call)


def _dims(call: Call, ndim: int) -> list[int]:
    dims = next((call.bound[k] for k in ("dim", "dims", "axis") if k in call.bound), None)
    if dims is None or dims == []:
        return list(range(ndim))
    return [d % ndim for d in (dims if isinstance(dims, list | tuple) else [dims])]


def _mix(policy: LabelPolicy, call: Call, dims: Sequence[int], keep: bool) -> Labels:
    """Freeze channels that are summed up or compared with each other; columns of a regrouped axis are tied.

    With `keep`, the axes keep their length and the columns their own labels.
    """
    mixed, rest = touching(call.labels(call.x), dims, call.x.ndim)
    for factor in mixed:
        if set(axes_of(factor)) <= set(dims):
            _reduce(policy, call, factor)
            rest += [factor] if keep else []
            continue
        narrowed = factor
        for axis in set(axes_of(factor)) & set(dims):
            policy.bind(narrowed, narrowed.narrow(axis, 0, 1))
            narrowed = narrowed.narrow(axis, 0, 1)
        rest.append(factor if keep else narrowed)
    return tuple(rest)


def _reduce(policy: LabelPolicy, call: Call, factor: Tensor) -> None:
    """Let channels that are summed up leave, as zeros would do nothing; freeze those of any other reduction."""
    axes = axes_of(factor)
    if len(axes) == 1 and _is_sum(call):
        policy.note(Reduction(call.op, call.index(call.x), axes[0], factor.numpy().reshape(-1)))
    else:
        policy.freeze((factor,), mixes(call.name))


def _is_sum(call: Call) -> bool:
    """Tell whether a reduction returns the same without zeros; of norms, all whose order is not negative do."""
    name = call.name.removeprefix("aten.")
    if name in ("linalg_vector_norm", "norm"):
        order = call.get("ord", call.get("p", 2))
        return order is None or float(order) >= 0
    return name in ("sum", "nansum", "any")


@rule(
    "mean", "sum", "amax", "amin", "var", "std", "prod", "max", "min", "linalg_vector_norm", "norm", "logsumexp",
    "argmax", "argmin", "any", "all", "var_mean", "std_mean", "aminmax", "nansum", "median",
)  # fmt: skip
def reduction(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through a reduction over axes that carry none."""
    if len(call.ins) > 1:
        return elementwise(policy, call)  # max(a, b)
    x, dims = call.x, _dims(call, call.x.ndim)
    rest = _mix(policy, call, dims, keep=False)
    if call.outs[0].ndim == x.ndim:
        return [rest] * len(call.outs)
    shape = [a for a in range(x.ndim) if a not in dims]
    return [tuple(f.reshape([f.shape[a] for a in shape]) for f in rest)] * len(call.outs)


@rule(
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "softmax",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "sort",
    "renorm",
)
def along(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through an operator along axes that carry none."""
    return [_mix(policy, call, _dims(call, call.x.ndim), keep=True)] * len(call.outs)


@rule(
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math",
)  # fmt: skip
def attention(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Freeze what attention compares; a value's channels and the heads would have to leave with them."""
    for x in call.ins:
        policy.freeze(call.labels(x), mixes(call.name))
    return [NONE] * len(call.outs)
