"""What some operators return on the meta device, without torch's decompositions written in Python.

Shapes are all that a trace needs, and batch norm and concatenation are most of what a network runs: computing them
here makes a trace about twice as fast. A test holds each of them against torch's own answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _batch_norm(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0), x.new_empty(0)


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    return tensors[0].new_empty(shape)


def _alike(tensors: list[Tensor], dim: int = 0) -> bool:
    """Tell whether tensors fit together without a question of types or sizes, which is torch's to answer."""
    first = tensors[0]
    axis = dim % max(1, first.ndim)
    return all(
        t.ndim == first.ndim > 1
        and t.dtype == first.dtype
        and all(m == n for a, (m, n) in enumerate(zip(t.shape, first.shape, strict=True)) if a != axis)
        for t in tensors
    )


def shortcut(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Return a function that answers for this call on the meta device, or None."""
    if name == "aten.native_batch_norm" and not kwargs and len(args) == 8 and args[5] is False:
        return _batch_norm if _fits(args[0], args[1:5]) else None
    if name == "aten.cat" and not kwargs and _alike(*args):
        return _cat
    return None


def _fits(x: Tensor, held: tuple[Tensor | None, ...]) -> bool:
    return x.ndim > 1 and all(p is None or tuple(p.shape) == (x.shape[1],) for p in held)
