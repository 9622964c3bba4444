"""The table: ATen operator -> how channel labels pass through it.

A rule is a small function `(tracer, call) -> labels of each output`. It may *tie* channels that have to leave
together, *freeze* channels that cannot leave, and note who writes and who reads them. What is not in the table is
frozen by `apply`, with the operator's name as the reason. A new operator is one entry here and one test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimilar.labels import CONSTANT, NONE, Labels, align, axes_of, compact, on_axis

if TYPE_CHECKING:
    from slimilar.trace import Signature, Tracer, Value


@lru_cache(maxsize=None)
def _parameters(func: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((a.name, a.default_value) for a in func._schema.arguments)


@dataclass(eq=False)
class Call:
    """One operator as it was called."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    module: str
    signature: Signature

    def bound(self) -> dict[str, Any]:
        """Return the arguments by name, defaults included."""
        names = _parameters(self.func)
        given = dict(zip((n for n, _ in names), self.args, strict=False))
        return {**dict(names), **given, **self.kwargs}

    def __getitem__(self, name: str) -> Any:
        return self.bound()[name]

    @property
    def outs(self) -> list[Tensor]:
        """Return the tensors that came out."""
        from slimilar.trace import tensors_in

        return list(tensors_in(self.result))

    @property
    def ins(self) -> list[Tensor]:
        """Return the tensors that went in."""
        from slimilar.trace import tensors_in

        return list(tensors_in((self.args, self.kwargs)))


Rule = Callable[["Tracer", Call], list[Labels]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table, under ATen names without their overloads; in-place forms are included."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = RULES[f"aten.{name}_"] = function
        return function

    return enter


def apply(t: Tracer, call: Call) -> list[Labels]:
    """Return the labels of every output of a call."""
    outs = call.outs
    if not any(t.labels(x) for x in call.ins):
        return [NONE] * len(outs)
    function = RULES.get(call.name)
    if function is None and torch.Tag.pointwise in call.func.tags:
        function = elementwise
    if function is None or call.signature in t.choices.stiff:
        sizes = " works at fixed sizes" if function else ""
        for x in call.ins:
            t.freeze(t.labels(x), f"operator {call.name}{sizes}")
        return [NONE] * len(outs)
    found = function(t, call)
    return found if len(found) == len(outs) else [found[0], *[NONE] * (len(outs) - 1)]


_UNIFORM = {
    "aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.zeros_like", "aten.ones_like", "aten.full_like",
    "aten.empty_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.scalar_tensor",
    "aten.fill", "aten.fill_", "aten.zero_",
}  # fmt: skip


def is_uniform(call: Call, inputs: Sequence[Value]) -> bool:
    """Tell whether every element of the output is one number."""
    if call.name in _UNIFORM:
        return True
    moves = RULES.get(call.name) in (move, view, same) or torch.Tag.pointwise in call.func.tags
    return moves and bool(inputs) and all(v.uniform or math.prod(v.shape) == 1 for v in inputs)


def _full(factor: Tensor, tensor: Tensor) -> Tensor:
    return factor.expand(tensor.shape)


def _split(labels: Labels, axis: int, ndim: int) -> tuple[Tensor | None, list[Tensor]]:
    """Return the labels along one axis as a vector, and the factors that vary along others."""
    axis %= ndim
    vector, rest = None, []
    for factor in labels:
        if axes_of(factor) == (axis,):
            vector = factor.reshape(-1)
        else:
            rest.append(factor)
    return vector, rest


def _touching(labels: Labels, axes: Sequence[int], ndim: int) -> tuple[list[Tensor], list[Tensor]]:
    """Divide factors into those that vary along any of the axes and those that do not."""
    wanted = {a % ndim for a in axes}
    touching = [f for f in labels if wanted & set(axes_of(f))]
    return touching, [f for f in labels if not wanted & set(axes_of(f))]


def resolve(t: Tracer, call: Call, factor: Tensor) -> Tensor:
    """Make the removal of channels a matter of one axis where their labels vary along several.

    After `view(b, groups, c // groups, h, w)` channels can only leave by columns (all groups lose the same one)
    or by rows (a whole group leaves). One forward pass cannot tell which of the two the code allows: the longest
    axis is assumed to shrink first, and the next one where probing the code has shown otherwise.
    """
    axes = axes_of(factor)
    if len(axes) < 2:
        return factor
    level = t.level(call.signature)
    if level >= len(axes):
        t.freeze((factor,), f"operator {call.name} regroups channels by fixed sizes")
        return factor
    free = sorted(axes, key=lambda a: (-factor.shape[a], -a))[level]
    for axis in axes:
        if axis != free:
            t.bind(factor, factor.narrow(axis, 0, 1))
    return factor


# --- operators that only move data: they act on the labels by being called on them --------------------------


def _moved(call: Call, x: Tensor, factor: Tensor) -> list[Tensor]:
    args = tuple(_full(factor, x) if a is x else a for a in call.args)
    kwargs = {k: _full(factor, x) if a is x else a for k, a in call.kwargs.items()}
    kwargs.pop("memory_format", None)
    result = call.func(*args, **kwargs)
    return [compact(f) for f in (result if isinstance(result, list | tuple) else [result])]


@rule("permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "movedim")
def move(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through an operator that gives every axis a new place."""
    x = call.ins[0]
    return [tuple(_moved(call, x, f)[0] for f in t.labels(x))]


@rule("view", "_unsafe_view", "reshape", "view_as", "unflatten", "flatten")
def view(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through an operator that divides and joins axes."""
    x, out = call.ins[0], call.outs[0]
    if x.dtype != out.dtype:
        t.freeze(t.labels(x), f"operator {call.name} reads the bits of another type")
        return [NONE]
    return [tuple(resolve(t, call, _viewed(f, x.shape, out.shape)) for f in t.labels(x))]


def _viewed(factor: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Reshape a factor; trailing axes that stay as they are and carry no labels are left out of the work."""
    same = 0
    for axis in range(1, min(len(before), len(after)) + 1):
        if before[-axis] != after[-axis] or factor.shape[-axis] > 1:
            break
        same = axis
    ones = (1,) * same
    full = factor.expand(*before[: len(before) - same], *ones)
    return compact(full.reshape(*after[: len(after) - same], *ones))


@rule("clone", "contiguous", "_to_copy", "detach", "alias", "lift_fresh", "dropout", "native_dropout", "to")
def same(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a copy."""
    return [t.labels(call.ins[0])] * len(call.outs)


def _tie_modulo(t: Tracer, factor: Tensor, axis: int, period: int) -> None:
    """Tie labels that are a multiple of `period` apart along an axis."""
    if period < factor.shape[axis]:
        blocks = factor.unflatten(axis, (-1, period))
        t.bind(blocks, blocks.narrow(axis, 0, 1))


def _tie_blocks(t: Tracer, factor: Tensor, axis: int, size: int) -> None:
    """Tie labels that stand in one block of `size` along an axis."""
    blocks = factor.unflatten(axis, (-1, size))
    t.bind(blocks, blocks.narrow(axis + 1, 0, 1))


def _cut(t: Tracer, call: Call, factor: Tensor, axis: int, places: Sequence[int], step: int = 1) -> None:
    """Tie channels so that cutting an axis at the same *relative* places still cuts between the same channels.

    Code that computes the places from the shape (chunk, `x[:, : c // 2]`) then works at any width. Code with fixed
    numbers does not; probing shows it, and the channels are frozen.
    """
    size = factor.shape[axis]
    if size == 1:
        return
    period = math.gcd(size, *places)
    if t.level(call.signature) > 0 or (step == 1 and period == 1) or size % step:
        t.freeze((factor,), f"operator {call.name} cuts channels at fixed positions")
    elif step > 1:
        _tie_blocks(t, factor, axis, step)
    else:
        _tie_modulo(t, factor, axis, period)


@rule("slice")
def slice_(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through `x[:, start:end:step]`."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    size = x.shape[axis]
    start, end, _ = slice(call["start"], call["end"]).indices(size)
    step = call["step"]
    if (start, end, step) != (0, size, 1):
        for factor in t.labels(x):
            _cut(t, call, factor, axis, (start, max(start, end)), step)
    return [tuple(_moved(call, x, f)[0] for f in t.labels(x))]


@rule("split", "chunk", "tensor_split")
def split(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through an even split."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    for factor in t.labels(x):
        _cut(t, call, factor, axis, [out.shape[axis] for out in call.outs])
    return _pieces(t, call, x)


@rule("split_with_sizes")
def split_with_sizes(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a split by a list; the list may be a module's own numbers, which can be mended."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    level = t.level(call.signature)
    for factor in t.labels(x):
        if factor.shape[axis] > 1 and level == 1:
            _tie_modulo(t, factor, axis, math.gcd(x.shape[axis], *call["split_sizes"]))
        elif factor.shape[axis] > 1 and level > 1:
            t.freeze((factor,), f"operator {call.name} cuts channels at fixed positions")
    return _pieces(t, call, x)


@rule("unbind")
def unbind(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through taking an axis apart; the axis itself keeps its length."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    touching, _ = _touching(t.labels(x), [axis], x.ndim)
    for factor in touching:
        t.bind(factor, factor.narrow(axis, 0, 1)) if len(axes_of(factor)) > 1 else t.freeze(
            (factor,), f"operator {call.name} takes channels apart"
        )
    return _pieces(t, call, x)


def _pieces(t: Tracer, call: Call, x: Tensor) -> list[Labels]:
    moved = [_moved(call, x, f) for f in t.labels(x)]
    return [tuple(factor[i] for factor in moved) for i in range(len(call.outs))]


@rule("select")
def select(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through `x[:, 3]`; where other axes carry the channels too, the rows stay."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    touching, _ = _touching(t.labels(x), [axis], x.ndim)
    for factor in touching:
        if len(axes_of(factor)) > 1:
            t.bind(factor, factor.narrow(axis, 0, 1))
        else:
            t.freeze((factor,), f"operator {call.name} takes a fixed channel")
    return [tuple(_moved(call, x, f)[0] for f in t.labels(x))]


@rule("flip", "roll", "repeat", "tile", "channel_shuffle")
def rearrange(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through operators that copy; axes without labels are left out of the work."""
    x = call.ins[0]
    found = []
    for factor in t.labels(x):
        if call.name == "aten.channel_shuffle":
            groups = call["groups"]
            moved = factor.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
            _tie_modulo(t, factor, 1, x.shape[1] // groups)
        elif call.name == "aten.roll":
            moved = _roll(t, call, x, factor)
        else:
            moved = _moved(call, x, factor)[0] if call.name == "aten.flip" else factor.repeat(call["repeats"])
        found.append(resolve(t, call, compact(moved)))
    return [tuple(found)]


def _roll(t: Tracer, call: Call, x: Tensor, factor: Tensor) -> Tensor:
    dims = call["dims"]
    touching = [d for d in dims if factor.shape[d % x.ndim] > 1] if dims else axes_of(factor)
    for d in touching:
        t.freeze((factor,), f"operator {call.name} shifts channels by a fixed number")
    return torch.roll(_full(factor, x), call["shifts"], dims)


@rule("index_select", "index")
def index(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through constant indices.

    Indices that are a buffer choose channels of their own (a channel selection): their labels are the output's,
    and what they choose from stays. Other indices are fixed numbers in the code, which probing will show.
    """
    x = call.ins[0]
    if call.name == "aten.index_select":
        indices: list[Tensor | None] = [None] * x.ndim
        indices[call["dim"] % x.ndim] = call["index"]
    else:
        indices = [*call["indices"], *[None] * (x.ndim - len(call["indices"]))]
    places = [axis for axis, i in enumerate(indices) if i is not None]
    touching, rest = _touching(t.labels(x), places, x.ndim)
    if not touching:
        return [_index_others(t, call, rest, indices, x)]
    if len(places) != 1 or indices[places[0]].ndim != 1:  # type: ignore[union-attr]
        t.freeze(tuple(touching), f"operator {call.name}")
        return [NONE]
    return [_index_one(t, call, x, touching, rest, places[0], indices[places[0]])]  # type: ignore[arg-type]


def _index_one(
    t: Tracer, call: Call, x: Tensor, touching: list[Tensor], rest: list[Tensor], axis: int, index: Tensor
) -> Labels:
    own = t.labels(index)
    if own and t.value(index).name is not None:
        from slimilar.trace import Write

        t.freeze(tuple(touching), "read by a channel selection")
        vector = own[0].reshape(-1)
        t.writes.append(Write(len(t.ops), axis, vector.numpy()))
        return (on_axis(vector, axis, x.ndim), *rest)
    if t.level(call.signature) > 0 or t.value(index).dynamic or index.dtype is torch.bool:
        t.freeze(tuple(touching), f"operator {call.name} takes channels by fixed positions")
    numbers = t.constants(index)
    return (*(compact(f.index_select(axis, numbers)) for f in touching), *rest)


def _index_others(
    t: Tracer, call: Call, rest: list[Tensor], indices: list[Tensor | None], x: Tensor
) -> Labels:
    """Index axes without labels: the labelled ones keep their place where only one index is given."""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].ndim == 1:
        return tuple(rest)
    t.freeze(tuple(rest), f"operator {call.name}")
    return NONE


@rule("constant_pad_nd")
def constant_pad(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through padding; padded channels belong to nobody."""
    x, amounts = call.ins[0], call["pad"]
    found = []
    for factor in t.labels(x):
        wanted = [
            a if factor.shape[x.ndim - 1 - i // 2] > 1 else 0 for i, a in enumerate(amounts)
        ]  # axes without labels stay compact
        found.append(torch.nn.functional.pad(factor, wanted, value=CONSTANT))
    return [tuple(found)]


@rule("cat", "concat", "stack")
def cat(t: Tracer, call: Call) -> list[Labels]:
    """Put labels side by side; a tensor without labels contributes constants."""
    tensors: list[Tensor] = list(call.args[0] if call.args else call.kwargs["tensors"])
    ndim = call.outs[0].ndim
    axis = call["dim"] % ndim
    labels = [t.labels(x) for x in tensors]
    if call.name == "aten.stack":
        labels = [tuple(f.unsqueeze(axis) for f in found) for found in labels]
        sizes = [[*x.shape[:axis], 1, *x.shape[axis:]] for x in tensors]
    else:
        kept = [(x, found) for x, found in zip(tensors, labels, strict=True) if x.ndim == ndim]
        labels, sizes = [found for _, found in kept], [list(x.shape) for x, _ in kept]
    if any(len(found) > 1 for found in labels):
        return [_cat_factors(t, call, labels, sizes, axis)]
    varying = {a for found in labels for f in found for a in axes_of(f)} | {axis}
    parts = [_part(found, size, varying) for found, size in zip(labels, sizes, strict=True)]
    return [(resolve(t, call, compact(torch.cat(parts, axis))),)]


def _part(labels: Labels, size: list[int], varying: set[int]) -> Tensor:
    shape = [n if a in varying else 1 for a, n in enumerate(size)]
    return labels[0].expand(shape) if labels else torch.full(shape, CONSTANT)


def _cat_factors(t: Tracer, call: Call, labels: list[Labels], sizes: list[list[int]], axis: int) -> Labels:
    """Concatenate tensors with several factors each (weights): along one of them, the others tied."""
    along = [_touching(found, [axis], len(sizes[0])) for found in labels]
    parts = [_part(tuple(a), size, {axis}) for (a, _), size in zip(along, sizes, strict=True)]
    others = [tuple(rest) for _, rest in along]
    if any(len(a) > 1 or len(axes_of(f)) > 1 for a, _ in along for f in a):
        for found in labels:
            t.freeze(found, f"operator {call.name}")
        return NONE
    return (torch.cat(parts, axis), *_combine(t, others, sizes, sums=False))


@rule("pixel_shuffle")
def pixel_shuffle(t: Tracer, call: Call) -> list[Labels]:
    """Tie the channels that become the pixels of one."""
    x, block = call.ins[0], call["upscale_factor"] ** 2
    vector, rest = _split(t.labels(x), x.ndim - 3, x.ndim)
    t.freeze(tuple(rest), f"operator {call.name}")
    if vector is None:
        return [NONE]
    t.bind(vector.view(-1, block), vector.view(-1, block)[:, :1])
    return [(on_axis(vector[::block], x.ndim - 3, x.ndim),)]


@rule("pixel_unshuffle")
def pixel_unshuffle(t: Tracer, call: Call) -> list[Labels]:
    """Repeat a channel's label for each of the channels that its pixels become."""
    x, block = call.ins[0], call["downscale_factor"] ** 2
    vector, rest = _split(t.labels(x), x.ndim - 3, x.ndim)
    t.freeze(tuple(rest), f"operator {call.name}")
    return [NONE if vector is None else (on_axis(vector.repeat_interleave(block), x.ndim - 3, x.ndim),)]


# --- element by element ---------------------------------------------------------------------------------------

_ADDITIONS = {"aten.add", "aten.add_", "aten.sub", "aten.sub_"}


def _combine(t: Tracer, labels: Sequence[Labels], sizes: Sequence[Sequence[int]], sums: bool) -> Labels:
    """Merge the labels of tensors that are combined position by position, with broadcasting."""
    found: list[Tensor] = []
    for one in labels:
        for factor in one:
            meets = [g for g in found if set(axes_of(g)) & set(axes_of(factor))]
            for other in meets:
                t.tie(other, factor, sums)
            found = [g for g in found if all(g is not m for m in meets)]
            found.append(max([*meets, factor], key=lambda f: f.numel()) if meets else factor)
            if len(meets) > 1:  # one operand varies along two axes, the other has them apart
                t.freeze(tuple(meets), "combined with channels on two axes")
    for factor in found:
        for one, size in zip(labels, sizes, strict=True):
            _check_cover(t, factor, one, size)
    return tuple(found)


def _check_cover(t: Tracer, factor: Tensor, labels: Labels, size: Sequence[int]) -> None:
    """Keep channels that meet a tensor which has as many entries of its own there."""
    covered = {a for f in labels for a in axes_of(f)}
    fixed = [a for a in axes_of(factor) if size[a] > 1 and a not in covered]
    if len(fixed) == len(axes_of(factor)):
        t.freeze((factor,), "combined with a tensor whose channels are fixed")
    else:
        for axis in fixed:
            t.bind(factor, factor.narrow(axis, 0, 1))


@rule(
    "hardswish", "_prelu_kernel", "prelu", "log_sigmoid_forward", "floor_divide", "rrelu_with_noise", "hardswish",
    "where", "bernoulli", "relu6", "_weight_norm_interface_elementwise",
)  # fmt: skip
def elementwise(t: Tracer, call: Call) -> list[Labels]:
    """Tie what is combined position by position."""
    ndim = call.outs[0].ndim if call.outs else 0
    operands = [x for x in call.ins if x.ndim <= ndim]
    dynamic = sum(t.value(x).dynamic and bool(t.labels(x)) for x in operands) > 1
    labels = [tuple(align(f, ndim) for f in t.labels(x)) for x in operands]
    sizes = [[1] * ndim if t.value(x).uniform else [1] * (ndim - x.ndim) + list(x.shape) for x in operands]
    found = _combine(t, labels, sizes, sums=dynamic and call.name in _ADDITIONS)
    return [found] * len(call.outs)


@rule("copy")
def copy(t: Tracer, call: Call) -> list[Labels]:
    """Overwrite a whole tensor; a part of one cannot be followed."""
    target, source = call.ins[0], call.ins[1]
    whole = target.untyped_storage().nbytes() == target.numel() * target.element_size()
    if not whole:
        t.freeze(t.labels(source) + t.labels(target), f"operator {call.name} writes into a part of a tensor")
        return [t.labels(target)]
    labels = tuple(align(f, target.ndim) for f in t.labels(source))
    return [labels]


@rule("fill", "zero")
def fill(t: Tracer, call: Call) -> list[Labels]:
    """Overwrite by one number: nobody's channels any more, but their place stays."""
    t.freeze(t.labels(call.ins[0]), f"operator {call.name} overwrites")
    return [NONE]


@rule("glu")
def glu(t: Tracer, call: Call) -> list[Labels]:
    """Tie the two halves."""
    x, axis = call.ins[0], call["dim"] % call.ins[0].ndim
    found = []
    for factor in t.labels(x):
        if factor.shape[axis] > 1:
            _tie_modulo(t, factor, axis, x.shape[axis] // 2)
            factor = factor.narrow(axis, 0, x.shape[axis] // 2)
        found.append(factor)
    return [tuple(found)]


# --- operators over space and over axes ----------------------------------------------------------------------


def _spatial(names: Sequence[str], axes: int) -> None:
    def over_space(t: Tracer, call: Call) -> list[Labels]:
        x = call.ins[0]
        touching, rest = _touching(t.labels(x), range(x.ndim - axes, x.ndim), x.ndim)
        t.freeze(tuple(touching), f"operator {call.name} mixes channels")
        for other in call.ins[1:]:
            t.freeze(t.labels(other), f"operator {call.name}")
        return [tuple(rest)] * len(call.outs)

    rule(*names)(over_space)


for _d in (1, 2, 3):
    _spatial(
        [
            f"max_pool{_d}d_with_indices", f"max_pool{_d}d", f"avg_pool{_d}d", f"_adaptive_avg_pool{_d}d",
            f"adaptive_avg_pool{_d}d", f"adaptive_max_pool{_d}d", f"fractional_max_pool{_d}d",
            f"upsample_nearest{_d}d", f"_upsample_nearest_exact{_d}d", f"reflection_pad{_d}d",
            f"replication_pad{_d}d", f"max_unpool{_d}d",
        ],
        _d,
    )  # fmt: skip
_spatial(["upsample_linear1d"], 1)
_spatial(["upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa"], 2)
_spatial(["upsample_trilinear3d"], 3)
_spatial(["grid_sampler_2d"], 2)
_spatial(["grid_sampler_3d"], 3)


def _dims(call: Call, ndim: int) -> list[int]:
    dims = next((call.bound()[k] for k in ("dim", "dims", "axis") if k in call.bound()), None)
    if dims is None or dims == []:
        return list(range(ndim))
    return [d % ndim for d in (dims if isinstance(dims, list | tuple) else [dims])]


def _mix(t: Tracer, call: Call, labels: Labels, dims: Sequence[int], ndim: int) -> Labels:
    """Freeze channels that are summed up or compared with each other; columns of a regrouped axis are tied."""
    touching, rest = _touching(labels, dims, ndim)
    for factor in touching:
        if set(axes_of(factor)) <= set(dims):
            t.freeze((factor,), f"operator {call.name} mixes channels")
            continue
        for axis in set(axes_of(factor)) & set(dims):
            t.bind(factor, factor.narrow(axis, 0, 1))
            factor = factor.narrow(axis, 0, 1)
        rest.append(factor)
    return tuple(rest)


@rule(
    "mean", "sum", "amax", "amin", "var", "std", "prod", "max", "min", "linalg_vector_norm", "norm", "logsumexp",
    "argmax", "argmin", "any", "all", "var_mean", "std_mean", "aminmax", "nansum", "median",
)  # fmt: skip
def reduction(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a reduction over axes that carry none."""
    if len(call.ins) > 1:
        return elementwise(t, call)  # max(a, b)
    x, dims = call.ins[0], _dims(call, call.ins[0].ndim)
    rest = _mix(t, call, t.labels(x), dims, x.ndim)
    if call.outs[0].ndim == x.ndim:
        return [rest] * len(call.outs)
    shape = [a for a in range(x.ndim) if a not in dims]
    return [tuple(f.reshape([f.shape[a] for a in shape]) for f in rest)] * len(call.outs)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "cumsum", "cumprod", "logcumsumexp", "sort", "renorm")
def along(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through an operator along axes that carry none."""
    x = call.ins[0]
    rest = _mix(t, call, t.labels(x), _dims(call, x.ndim), x.ndim)
    return [rest] * len(call.outs)


# --- normalisation ------------------------------------------------------------------------------------------


@rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm",
    "cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update", "miopen_batch_norm",
)  # fmt: skip
def batch_norm(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a batch norm and note it: its gamma and beta are the moments of the channels."""
    from slimilar.trace import Norm, Write

    x = call.ins[0]
    names = ("weight", "bias", "running_mean", "running_var")
    held = [call.bound().get(n) for n in names]
    own = [v for v in (_split(t.labels(p), 0, 1)[0] for p in held if p is not None) if v is not None]
    vector, rest = _split(t.labels(x), 1, x.ndim)
    keep, mixed = [f for f in rest if axes_of(f) == (0,)], [f for f in rest if axes_of(f) != (0,)]
    if call["training"] if "training" in call.bound() else False:
        mixed, keep = rest, []
    t.freeze(tuple(mixed), f"operator {call.name} mixes channels")
    selects = call.module in t.choices.select and bool(own)
    if selects:
        vector = own[0]
        t.writes.append(Write(len(t.ops), 1, vector.numpy()))
    for mine in own:
        if vector is None:
            t.freeze((mine,), "normalises channels that are fixed")
        else:
            t.tie(vector, mine)
    if vector is None:
        return [tuple(keep), NONE, NONE][: len(call.outs)]
    tensors = tuple(None if p is None else t.value(p).name for p in held)
    eps = float(call.bound().get("eps", call.bound().get("epsilon", 1e-5)))
    t.norms.append(Norm(len(t.ops), call.module, vector.numpy(), tensors, eps, selects))  # type: ignore[arg-type]
    out = (on_axis(vector, 1, x.ndim), *keep)
    return [out, *[NONE] * (len(call.outs) - 1)]


@rule("native_group_norm")
def group_norm(t: Tracer, call: Call) -> list[Labels]:
    """Tie the channels of each group: a whole group may leave."""
    from slimilar.trace import Integer

    x, groups = call.ins[0], call["group"]
    vector, rest = _split(t.labels(x), 1, x.ndim)
    t.freeze(tuple(rest), f"operator {call.name} mixes channels")
    own = [v for p in (call["weight"], call["bias"]) if p is not None for v in [_split(t.labels(p), 0, 1)[0]]]
    for mine in own:
        if mine is not None:
            t.freeze((mine,), "normalises channels that are fixed") if vector is None else t.tie(vector, mine)
    if vector is None:
        return [NONE] * len(call.outs)
    if groups == 1 or t.level(call.signature) > 0:
        t.freeze((vector,), f"operator {call.name} mixes channels")
    blocks = vector.view(groups, -1)
    t.bind(blocks, blocks[:, :1])
    if getattr(t.modules[call.module], "num_groups", None) == groups:
        t.integers.append(Integer(call.module, "num_groups", None, blocks[:, 0].numpy()))
    return [(on_axis(vector, 1, x.ndim),), *[NONE] * (len(call.outs) - 1)]


@rule("native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(t: Tracer, call: Call) -> list[Labels]:
    """Freeze normalised channels: the others would change with each that leaves."""
    x, over = call.ins[0], len(call["normalized_shape"])
    touching, rest = _touching(t.labels(x), range(x.ndim - over, x.ndim), x.ndim)
    t.freeze(tuple(touching), f"operator {call.name} mixes channels")
    for p in call.ins[1:]:
        t.freeze(t.labels(p), f"operator {call.name} mixes channels")
    kept = [f for f in touching if set(axes_of(f)) <= set(range(x.ndim))]
    return [(*rest, *kept), *[NONE] * (len(call.outs) - 1)]


# --- writers and readers --------------------------------------------------------------------------------------


@rule("convolution", "conv1d", "conv2d", "conv3d", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def convolution(t: Tracer, call: Call) -> list[Labels]:
    """Read the input's channels, write the output's; groups tie them."""
    x, weight, bias = call["input"], call["weight"], call.bound().get("bias")
    groups, transposed = call["groups"], bool(call.bound().get("transposed"))
    vector, rest = _split(t.labels(x), 1, x.ndim)
    batch = [f for f in rest if axes_of(f) == (0,)]
    t.freeze(tuple(f for f in rest if axes_of(f) != (0,)), f"operator {call.name} mixes channels")
    first, others = _split(t.labels(weight), 0, weight.ndim)
    second, _ = _split(tuple(others), 1, weight.ndim)
    join = _transposed if transposed else _forward
    out = join(t, call, vector, first, second, x.shape[1], groups)
    if bias is not None and out is not None:
        mine, _ = _split(t.labels(bias), 0, 1)
        t.freeze((out,), "combined with a tensor whose channels are fixed") if mine is None else t.tie(out, mine)
    if out is None:
        t.freeze(t.labels(bias), "writes channels that are fixed")
        return [tuple(batch)]
    return [(on_axis(out, 1, call.outs[0].ndim), *batch)]


def _write(t: Tracer, atoms: Tensor, axis: int = 1) -> Tensor:
    from slimilar.trace import Write

    t.writes.append(Write(len(t.ops), axis, atoms.numpy()))
    return atoms


def _read(t: Tracer, call: Call, x: Tensor, axis: int, vector: Tensor | None, weight: Tensor | None) -> None:
    """Note that `vector` is summed over with `weight`; whichever is missing is fixed."""
    from slimilar.trace import Read

    if vector is not None and weight is not None:
        t.tie(vector, weight)
        t.reads.append(Read(len(t.ops), t.index(x), axis % x.ndim, vector.numpy(), weight.numpy()))
    elif vector is not None:
        t.freeze((vector,), f"operator {call.name} reads channels by a weight of fixed size")
    elif weight is not None:
        t.freeze((weight,), "reads channels that are fixed")


def _groups(t: Tracer, call: Call, per_group: Tensor) -> None:
    from slimilar.trace import Integer

    if getattr(t.modules[call.module], "groups", None) == call["groups"]:
        t.integers.append(Integer(call.module, "groups", None, per_group.numpy()))


def _whole_groups(t: Tracer, call: Call) -> bool:
    """Decide how a grouped convolution shrinks: by whole groups, or within every group alike."""
    groups, channels = t.original_groups(call)
    prefer_whole = groups * groups >= channels
    return prefer_whole if t.level(call.signature) == 0 else not prefer_whole


def _forward(
    t: Tracer, call: Call, x: Tensor | None, w_out: Tensor | None, w_in: Tensor | None, c_in: int, groups: int
) -> Tensor | None:
    if groups == 1:
        _read(t, call, call["input"], 1, x, w_in)
        return None if w_out is None else _write(t, w_out)
    out_size = call.outs[0].shape[1]
    per_group = c_in // groups
    if x is not None and (per_group == 1 or _whole_groups(t, call)):
        blocks = x.view(groups, per_group)
        t.bind(blocks, blocks[:, :1])
        spread = blocks[:, 0].repeat_interleave(out_size // groups)
        if w_in is not None:
            t.freeze((w_in,), "inside a group")
        _groups(t, call, blocks[:, 0])
        if w_out is None:
            return spread
        t.tie(w_out, spread)
        return _write(t, w_out)
    if x is not None:
        columns = x.view(groups, per_group)
        t.bind(columns, columns[:1])
        _read(t, call, call["input"], 1, columns.reshape(-1), None if w_in is None else w_in.repeat(groups))
    elif w_in is not None:
        t.freeze((w_in,), "reads channels that are fixed")
    if w_out is None:
        return None
    if w_out.numel() == groups:
        t.freeze((w_out,), "writes one channel for each fixed group")
    columns = w_out.view(groups, -1)
    t.bind(columns, columns[:1])
    return _write(t, w_out)


def _transposed(
    t: Tracer, call: Call, x: Tensor | None, w_in: Tensor | None, w_out: Tensor | None, c_in: int, groups: int
) -> Tensor | None:
    per_group = c_in // groups
    if groups > 1 and x is not None and (per_group == 1 or _whole_groups(t, call)):
        blocks = x.view(groups, per_group)
        t.bind(blocks, blocks[:, :1])
        if w_in is not None:
            t.tie(x, w_in)
        if w_out is not None:
            t.freeze((w_out,), "inside a group")
        _groups(t, call, blocks[:, 0])
        return blocks[:, 0].repeat_interleave(call.outs[0].shape[1] // groups)
    if x is not None and groups > 1:
        columns = x.view(groups, per_group)
        t.bind(columns, columns[:1])
    _read(t, call, call["input"], 1, x, w_in)
    return None if w_out is None else _write(t, w_out.repeat(groups))


@rule("mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "mv", "addmv", "dot")
def contraction(t: Tracer, call: Call) -> list[Labels]:
    """Multiply matrices: read the inner axis, pass on the outer ones."""
    bound, short = call.bound(), call.name.removeprefix("aten.").rstrip("_")
    bias = bound.get("bias") if short == "linear" else bound.get("self") if short.startswith(("add", "badd")) else None
    a, b = [x for x in call.ins if x is not bias][:2] if bias is not None else call.ins[:2]
    out = call.outs[0]
    transposed = short == "linear"
    if b.ndim < 2 or a.ndim < 2 or (a.ndim > 2 and b.ndim > 2 and a.ndim != b.ndim):
        for x in call.ins:
            t.freeze(t.labels(x), f"operator {call.name}")
        return [NONE]
    k_axis, n_axis = (b.ndim - 1, b.ndim - 2) if transposed else (b.ndim - 2, b.ndim - 1)
    a_k, a_rest = _split(t.labels(a), a.ndim - 1, a.ndim)
    b_k, b_rest = _split(t.labels(b), k_axis, b.ndim)
    b_n, b_batch = _split(tuple(b_rest), n_axis, b.ndim)
    _contract(t, call, a, b, a_k, b_k)
    mixed = [f for f in a_rest if a.ndim - 1 in axes_of(f)] + [f for f in b_batch if {k_axis, n_axis} & set(axes_of(f))]
    t.freeze(tuple(mixed), f"operator {call.name} mixes channels")
    passed = [tuple(align(f, out.ndim) for f in a_rest if a.ndim - 1 not in axes_of(f))]
    passed.append(tuple(align(f, out.ndim) for f in b_batch if not {k_axis, n_axis} & set(axes_of(f))))
    if b_n is not None:
        passed.append((on_axis(_write(t, b_n, out.ndim - 1), out.ndim - 1, out.ndim),))
    if bias is not None:
        passed.append(tuple(align(f, out.ndim) for f in t.labels(bias)))
    outer_a = [*a.shape[:-1], 1] if a.ndim == out.ndim else [1] * out.ndim
    sizes: list[Sequence[int]] = [
        [1] * (out.ndim - a.ndim) + outer_a,
        [1] * (out.ndim - b.ndim) + [*b.shape[:-2], 1, 1],
    ]
    if b_n is not None:
        sizes.append([1] * (out.ndim - 1) + [out.shape[-1]])
    if bias is not None:
        sizes.append([1] * (out.ndim - bias.ndim) + list(bias.shape))
    return [_combine(t, passed, sizes, sums=False)]


def _contract(t: Tracer, call: Call, a: Tensor, b: Tensor, a_k: Tensor | None, b_k: Tensor | None) -> None:
    static = not (t.value(a).dynamic and t.value(b).dynamic)
    if static and not t.value(b).dynamic:
        _read(t, call, a, a.ndim - 1, a_k, b_k)
    elif static:
        _read(t, call, b, b.ndim - 2, b_k, a_k)
    else:
        t.freeze(tuple(v for v in (a_k, b_k) if v is not None), f"operator {call.name} mixes channels")


# --- numbers that modules hold --------------------------------------------------------------------------------


def held_integers(t: Tracer, call: Call) -> list[tuple[str, str, int | None, Any]]:
    """Return the whole numbers of the running module that equal a size which shrinks with the channels here.

    `x.split((self.c, self.c), 1)` works at any width if `self.c` shrinks along. Whether that is what the code
    means is for probing to show.
    """
    found = []
    for number, vector in _sizes(t, call):
        path = call.module
        while not (held := _holding(t.modules[path], number)) and path:
            path = path.rpartition(".")[0]
        found += [(path, attribute, item, vector.numpy()) for attribute, item in held]
    return list({(path, attribute, item): (path, attribute, item, v) for path, attribute, item, v in found}.values())


def _holding(module: torch.nn.Module, number: int) -> list[tuple[str, int | None]]:
    held: list[tuple[str, int | None]] = []
    for name, value in vars(module).items():
        if type(value) is int and value == number:
            held.append((name, None))
        elif type(value) in (list, tuple) and all(type(v) is int for v in value):
            held += [(name, i) for i, v in enumerate(value) if v == number]
    return held


def _sizes(t: Tracer, call: Call) -> list[tuple[int, Tensor]]:
    """Return the sizes in a call that shrink with channels, each with the labels that it counts."""
    x = call.ins[0]
    if RULES[call.name] is convolution:
        vector, _ = _split(t.labels(x), 1, x.ndim)
        return [] if vector is None else [(call["groups"], vector[:: x.shape[1] // call["groups"]])]
    if RULES[call.name] is slice_:
        vector, _ = _split(t.labels(x), call["dim"], x.ndim)
        cuts = slice(call["start"], call["end"]).indices(x.shape[call["dim"]])[:2]
        return [] if vector is None else [(n, vector[:n]) for n in cuts if 0 < n < len(vector)]
    found = []
    for out in call.outs:
        for factor in t.labels(out):
            for axis in axes_of(factor):
                lead = [slice(None) if a == axis else slice(0, 1) for a in range(factor.ndim)]
                found.append((out.shape[axis], factor[tuple(lead)].reshape(-1)))
    return found


# operators behind whose rule stands an assumption that can be given up step by step
LEVELLED = {
    name
    for name, function in RULES.items()
    if function in (view, slice_, split, split_with_sizes, index, cat, rearrange, convolution, group_norm)
}
