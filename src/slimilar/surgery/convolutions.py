"""Convolutions that need not run: most of the time of a verification is spent in them, and much of it twice."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from slimilar.graph.meta_shapes import convolution_shape

_LARGE = (
    1 << 18
)  # numbers of an input and output that are not remembered: images that could not be made small
_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class _Convolved(NamedTuple):
    x: Tensor
    rest: tuple[Any, ...]  # weight, bias, stride and so on
    y: Tensor


class ConvolutionMemory:
    """The convolutions of a forward pass, to be looked up in passes on the same images in batches of other sizes.

    A convolution treats every image alone. So one that has run on some images is not run again on an input in which
    these repeat, which is compared number by number.
    """

    def __init__(self) -> None:
        self._known: dict[
            int, _Convolved
        ] = {}  # the turn of a convolution in the forward pass -> its last run
        self._turn = 0

    def restart(self) -> None:
        """Begin another forward pass."""
        self._turn = 0

    def convolve(self, func: Any, x: Tensor, *rest: Any) -> Tensor:
        """Return what a convolution returns for its next call in this pass."""
        turn, self._turn = self._turn, self._turn + 1
        known = self._known.get(turn)
        if known is not None and _same(rest, known.rest) and x.shape[1:] == known.x.shape[1:]:
            which = torch.arange(len(x), device=x.device) % len(known.x)
            if torch.equal(x, known.x[which]):
                return known.y[which]
        y: Tensor = func(x, *rest)
        if x.numel() + y.numel() < _LARGE:
            self._known[turn] = _Convolved(x.clone(), rest, y.clone())  # others may write to both
        return y


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether arguments are the same: tensors by identity."""
    return len(some) == len(others) and all(
        a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)
        for a, b in zip(some, others, strict=True)
    )


class RepeatedImages(TorchFunctionMode):
    """Run a model on images, then on the same ones in batches of other sizes; convolutions are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = ConvolutionMemory()

    def __enter__(self) -> RepeatedImages:
        self._memory.restart()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _CONVOLUTIONS and not kwargs:
            return self._memory.convolve(func, *args)
        return func(*args, **(kwargs or {}))


class WithoutConvolving(TorchFunctionMode):
    """Run a model whose convolutions return the first number of their input everywhere, in the right shape.

    Gradients pass it. Unusual convolutions run as they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _CONVOLUTIONS and not kwargs and (shape := _shape(*args)) is not None:
            return args[0].flatten()[0].expand(shape).contiguous()
        return func(*args, **(kwargs or {}))


def _shape(*args: Any) -> list[int] | None:
    """Return the shape of a convolution that is called as torch's modules do; None for others."""
    if len(args) != 7 or not all(isinstance(x, tuple) for x in args[3:6]):
        return None
    *given, groups = args
    return convolution_shape(*given, False, (), groups)
