"""What common operators return on the meta device, without torch's decompositions written in Python.

Shapes are all that a trace needs. Batch norm, activations, sums and concatenation are most of what a network runs;
computing their shapes here makes a trace several times as fast. A test holds each against torch's own answer, and
whatever is unusual (types, broadcasting, sizes that do not fit) is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slimilar.graph.activations import POINTWISE

_ACTIVATIONS = {f"aten.{name}{suffix}" for suffix in ("", "_") for name in POINTWISE}
_PAIRS = {"aten.add", "aten.add_", "aten.mul", "aten.mul_", "aten.sub", "aten.sub_"}


def _like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _batch_norm(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=x.dtype, device="meta")
    return _like(x), nothing, torch.empty(0, dtype=x.dtype, device="meta")


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype, device="meta")


def _convolution(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty(_convolved(x, *rest), dtype=x.dtype, device="meta")


def _convolved(
    x: Tensor, weight: Tensor, bias: Any, stride: list[int], padding: list[int], dilation: list[int], *_: Any
) -> list[int]:
    sides = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    space = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides]
    return [x.shape[0], weight.shape[0], *space]


def convolution_shape(*args: Any) -> list[int] | None:
    """Return the shape of what `aten.convolution` returns for these arguments; None where they are unusual or wrong.

    >>> x, weight = torch.zeros(2, 3, 9, 9), torch.zeros(4, 3, 3, 3)
    >>> convolution_shape(x, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    [2, 4, 5, 5]
    """
    return _convolved(*args) if _convolves(*args) else None


def _mean(x: Tensor, axes: list[int], keepdim: bool = False) -> Tensor:
    gone = {axis % x.ndim for axis in axes}
    shape = [1 if a in gone else n for a, n in enumerate(x.shape) if keepdim or a not in gone]
    return torch.empty(shape, dtype=x.dtype, device="meta")


def _new(x: Tensor, *_: Any) -> Tensor:
    return _like(x)


def _same(x: Tensor, *_: Any) -> Tensor:
    return x


def shortcut(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Return a function that answers for this call on the meta device, or None."""
    if kwargs:
        return None
    if name in _ACTIVATIONS and args[0].is_floating_point() and _dense(args[0]):
        return _same if name.endswith("_") else _new
    if name in _PAIRS and _equal(*args):
        return _same if name.endswith("_") else _new
    if name == "aten.native_batch_norm" and len(args) == 8 and args[5] is False and _fits(args[0], args[1:5]):
        return _batch_norm
    if name == "aten.convolution" and _convolves(*args):
        return _convolution
    if name == "aten.mean" and _has_axes(*args):
        return _mean
    return _cat if name == "aten.cat" and _alike(*args) else None


def _dense(x: Tensor) -> bool:
    return x.is_contiguous()


def _equal(a: Any, b: Any, *rest: Any) -> bool:
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and not rest
        and a.shape == b.shape
        and a.dtype == b.dtype
        and _dense(a)
        and _dense(b)
    )


def _alike(tensors: list[Tensor], dim: int = 0) -> bool:
    first = tensors[0]
    axis = dim % max(1, first.ndim)
    return all(
        t.ndim == first.ndim > 1
        and t.dtype == first.dtype
        and _dense(t)
        and all(m == n for a, (m, n) in enumerate(zip(t.shape, first.shape, strict=True)) if a != axis)
        for t in tensors
    )


def _has_axes(x: Tensor, axes: Any = None, *_: Any) -> bool:
    return (
        x.is_floating_point()
        and _dense(x)
        and type(axes) is list
        and len(axes) > 0
        and all(type(axis) is int and -x.ndim <= axis < x.ndim for axis in axes)
        and len({axis % x.ndim for axis in axes}) == len(axes)
    )


def _fits(x: Tensor, held: tuple[Tensor | None, ...]) -> bool:
    return x.ndim > 1 and _dense(x) and all(p is None or tuple(p.shape) == (x.shape[1],) for p in held)


def _convolves(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> bool:  # fmt: skip
    axes = weight.ndim - 2
    reach = zip(x.shape[2:], weight.shape[2:], padding, dilation, strict=False)
    return (
        not transposed
        and x.ndim == weight.ndim
        and len(stride) == len(padding) == len(dilation) == axes
        and x.shape[1] == weight.shape[1] * groups
        and weight.shape[0] % groups == 0
        and x.dtype == weight.dtype
        and (bias is None or tuple(bias.shape) == (weight.shape[0],))
        and all(n + 2 * p >= d * (k - 1) + 1 for n, k, p, d in reach)
        and _dense(x)
        and _dense(weight)
    )
