"""Convolutions that need not run as they are: they are skipped, known already, or a product of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from slimilar.graph.meta_shapes import convolution_shape
from slimilar.utils.modules import named_modules

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SMALL = 16  # positions: from here on torch's convolution is as fast as a product
_Convolve = Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]  # layer, input, weight, bias


def without_convolving(model: nn.Module) -> AbstractContextManager[None]:
    """Let the convolutions of a model of ours return zeros in the right shape, which gradients pass.

    Unusual ones run as they are.
    """
    return _convolving(model, _zeros)


def each_image_once(model: nn.Module) -> AbstractContextManager[None]:
    """Let no convolution of a model of ours run again on images that were the first of a larger batch before.

    A convolution treats every image by itself. What it returned is kept as long as this lasts.
    """
    return _convolving(model, _Known())


def product(*args: Any) -> Tensor | None:
    """Return what `aten.convolution` does for these arguments, by a product of matrices; None if it is not one.

    It is if the kernel has one position. Where images have become very small, a product takes a fifth of the time.

    >>> x, weight = torch.randn(2, 3, 3, 3), torch.randn(5, 3, 1, 1)
    >>> made = product(x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    >>> torch.allclose(made, torch.conv2d(x, weight, stride=2), atol=1e-6)
    True
    """
    x, weight, bias, stride, padding, *_, groups = args
    small = x.shape[2:].numel() < _SMALL and weight.shape[2:].numel() == 1
    shape = convolution_shape(*args) if small and groups == 1 and not any(padding) else None
    if shape is None:
        return None
    places = (..., *(slice(None, None, step) for step in stride))
    last = x[places].movedim(1, -1)
    # of one matrix: several take twice as long
    made = linear(last.reshape(-1, x.shape[1]), weight.flatten(1), bias)
    return made.view(*last.shape[:-1], shape[1]).movedim(-1, 1).contiguous()


@contextmanager
def _convolving(model: nn.Module, convolve: _Convolve) -> Iterator[None]:
    layers = [m for m in named_modules(model).values() if type(m) in _CONVOLUTIONS]
    for layer in layers:
        vars(layer)["_conv_forward"] = partial(convolve, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["_conv_forward"]


def _arguments(layer: Any) -> tuple[Any, ...] | None:
    """Return what `aten.convolution` gets beside tensors; None if the layer does more than to call it."""
    if type(layer.padding) is not tuple or layer.padding_mode != "zeros":
        return None
    return layer.stride, layer.padding, layer.dilation, False, (0,) * len(layer.stride), layer.groups


def _run(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = type(layer)._conv_forward(layer, x, weight, bias)
    return made


def _zeros(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return zeros for what a layer would return; that itself where its arguments are unusual or wrong."""
    given = _arguments(layer)
    if given and (shape := convolution_shape(x, weight, bias, *given)) is not None:
        found: Tensor = _Zeros.apply(x, shape)  # type: ignore[no-untyped-call]
        return found
    return _run(layer, x, weight, bias)


class _Zeros(torch.autograd.Function):
    """Zeros in a shape, and the gradient zero of what stands for their input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Sequence[int]) -> Tensor:
        ctx.shape = x.shape
        return x.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_zeros(ctx.shape), None


class _Known:
    """What each layer was last given and returned, with torch's counts of how often these were written to."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Tensor, Tensor, Tensor, tuple[int, int]]] = {}

    def __call__(self, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if id(layer) in self._last:
            before, kernel, made, writes = self._last[id(layer)]
            unwritten = kernel is weight and (before._version, made._version) == writes
            if unwritten and x.ndim == before.ndim == made.ndim and torch.equal(before[: len(x)], x):
                return made[: len(x)]
        given = _arguments(layer)
        quick = product(x, weight, bias, *given) if given else None
        made = _run(layer, x, weight, bias) if quick is None else quick
        self._last[id(layer)] = x, weight, made, (x._version, made._version)
        return made
