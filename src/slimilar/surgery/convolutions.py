"""Convolutions that need not run: in a step of training, tried for code and shapes; or on images known already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.graph.meta_shapes import convolution_shape
from slimilar.utils.modules import named_modules

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
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


def _run(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = type(layer)._conv_forward(layer, x, weight, bias)
    return made


def _zeros(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return zeros for what a layer would return; that itself where its arguments are unusual or wrong."""
    if type(layer.padding) is tuple and layer.padding_mode == "zeros":
        given = (layer.stride, layer.padding, layer.dilation, False, (), layer.groups)
        if (shape := convolution_shape(x, weight, bias, *given)) is not None:
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
        made = _run(layer, x, weight, bias)
        self._last[id(layer)] = x, weight, made, (x._version, made._version)
        return made
