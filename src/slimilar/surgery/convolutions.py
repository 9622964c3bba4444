"""Convolutions that need not run: code and shapes are all that a step of training is tried for."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from slimilar.graph.meta_shapes import convolution_shape

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


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
