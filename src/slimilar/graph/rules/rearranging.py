"""Operators that copy elements to other places: flip, roll, repeat, shuffles, unfolding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimilar.graph.labels import NONE, Labels, axes_of, compact, on_axis
from slimilar.graph.reasons import fixed_size, unknown
from slimilar.graph.rules.moving import moved
from slimilar.graph.rules.table import Call, along_axis, resolve, rule, tie_modulo

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


@rule("flip", "roll", "repeat", "tile", "channel_shuffle", "repeat_interleave")
def rearrange(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through operators that copy; axes without labels are left out of the work."""
    function = _FUNCTIONS[call.name.removeprefix("aten.").rstrip("_")]
    return [tuple(resolve(policy, call, compact(function(policy, call, f))) for f in call.labels(call.x))]


def _flip(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    return factor.flip(call["dims"])


def _repeat(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    repeats = list(call["repeats"] if "repeats" in call.bound else call["dims"])
    factor = factor.reshape((1,) * (len(repeats) - factor.ndim) + tuple(factor.shape))
    return factor.repeat([n if size > 1 else 1 for n, size in zip(repeats, factor.shape, strict=True)])


def _interleave(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    return factor.repeat_interleave(call["repeats"], call["dim"]) if factor.shape[call.dim] > 1 else factor


def _shuffle(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    if factor.shape[1] == 1:
        return factor
    groups = call["groups"]
    tie_modulo(policy, factor, 1, factor.shape[1] // groups)
    blocks: Tensor = factor.unflatten(1, (groups, -1))
    return blocks.transpose(1, 2).flatten(1, 2)


def _roll(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    x, dims = call.x, call["dims"]
    if not dims or any(factor.shape[d % x.ndim] > 1 for d in dims):
        policy.freeze((factor,), fixed_size(f"operator {call.name} shifts channels by a fixed number"))
    return torch.roll(factor.expand(x.shape), call["shifts"], dims)


_FUNCTIONS = {
    "flip": _flip, "roll": _roll, "repeat": _repeat, "tile": _repeat, "channel_shuffle": _shuffle,
    "repeat_interleave": _interleave,
}  # fmt: skip


@rule("pixel_shuffle")
def pixel_shuffle(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Bind the channels that become the pixels of one."""
    x, block = call.x, call["upscale_factor"] ** 2
    vector, rest = along_axis(call.labels(x), x.ndim - 3, x.ndim)
    policy.freeze(tuple(rest), unknown(call.name))
    if vector is None:
        return [NONE]
    policy.bind(vector.view(-1, block), vector.view(-1, block)[:, :1])
    return [(on_axis(vector[::block], x.ndim - 3, x.ndim),)]


@rule("pixel_unshuffle")
def pixel_unshuffle(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Repeat a channel's label for each of the channels that its pixels become."""
    x, block = call.x, call["downscale_factor"] ** 2
    vector, rest = along_axis(call.labels(x), x.ndim - 3, x.ndim)
    policy.freeze(tuple(rest), unknown(call.name))
    return [NONE if vector is None else (on_axis(vector.repeat_interleave(block), x.ndim - 3, x.ndim),)]


@rule("im2col")
def im2col(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Repeat a channel's label for each pixel of its patches."""
    x, block = call.x, math.prod(call["kernel_size"])
    vector, rest = along_axis(call.labels(x), x.ndim - 3, x.ndim)
    policy.freeze(tuple(rest), unknown(call.name))
    return [NONE if vector is None else (on_axis(vector.repeat_interleave(block), x.ndim - 3, x.ndim - 1),)]


@rule("col2im")
def col2im(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Bind the rows that are summed into the patches of one channel."""
    x, block = call.x, math.prod(call["kernel_size"])
    vector, rest = along_axis(call.labels(x), x.ndim - 2, x.ndim)
    policy.freeze(tuple(rest), unknown(call.name))
    if vector is None:
        return [NONE]
    policy.bind(vector.view(-1, block), vector.view(-1, block)[:, :1])
    return [(on_axis(vector[::block], x.ndim - 2, x.ndim + 1),)]


@rule("unfold")
def unfold(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through sliding windows over an axis without them."""
    axis = int(call["dimension"]) % call.x.ndim
    found = []
    for factor in call.labels(call.x):
        if axis in axes_of(factor):
            policy.freeze((factor,), fixed_size(f"operator {call.name} takes windows of channels"))
            found += [compact(moved(call, call.x, factor)[0])]
        else:
            found.append(factor.unsqueeze(-1))
    return [tuple(found)]
