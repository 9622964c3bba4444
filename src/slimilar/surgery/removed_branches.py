"""Residual branches that lose their last channel: what stands in place of their layers.

A layer that writes no channel returns a tensor without any; the layer that reads it returns its bias, which takes in
the batch norm behind it. So the block returns its input plus a constant, and computes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

Stand = Literal["empty", "identity", "constant"]  # what stands in place of a layer


class EmptyOutput(nn.Module):
    """Stands for a convolution or linear layer that writes no channel: returns a tensor of its shape without any.

    >>> EmptyOutput(nn.Conv2d(3, 8, 3, stride=2))(torch.zeros(1, 3, 9, 9)).shape
    torch.Size([1, 0, 4, 4])
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.shape = _Shape(layer)

    def forward(self, input: Tensor) -> Tensor:
        return input.new_empty(self.shape.of(input, 0))


class ConstantOutput(nn.Module):
    """Stands for a convolution or linear layer that reads no channel: returns its bias everywhere.

    >>> ConstantOutput(nn.Conv2d(4, 2, 3, padding=1))(torch.zeros(1, 0, 5, 5)).shape
    torch.Size([1, 2, 5, 5])
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.shape = _Shape(layer)
        self.bias: nn.Parameter = layer.bias  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        shape = self.shape.of(input, len(self.bias))
        bias = self.bias if self.shape.linear else self.bias.view(-1, *[1] * len(self.shape.kernel))
        return bias.expand(shape).clone()  # code may write into it


class _Shape:
    """The shape of what a convolution or linear layer returns."""

    def __init__(self, layer: Any) -> None:
        self.linear = isinstance(layer, nn.Linear)
        self.kernel: Sequence[int] = () if self.linear else layer.kernel_size
        self.stride: Sequence[int] = () if self.linear else layer.stride
        self.dilation: Sequence[int] = () if self.linear else layer.dilation
        self.padding: Sequence[int] | str = () if self.linear else layer.padding

    def of(self, x: Tensor, channels: int) -> list[int]:
        """Return the shape of the output for an input."""
        if self.linear:
            return [*x.shape[:-1], channels]
        axes = len(self.kernel)
        return [*x.shape[: -axes - 1], channels, *(self._length(x.shape[a - axes], a) for a in range(axes))]

    def _length(self, n: int, a: int) -> int:
        reach = self.dilation[a] * (self.kernel[a] - 1)
        around = (
            {"same": reach, "valid": 0}[self.padding]
            if isinstance(self.padding, str)
            else 2 * self.padding[a]
        )
        return (n + around - reach - 1) // self.stride[a] + 1


def replace_branches(model: nn.Module, stands: Mapping[str, Stand], folded: Mapping[str, str]) -> None:
    """Put what stands for removed layers in their place, in place; `folded` are batch norms, by the layer before."""
    for path, norm in folded.items():
        _fold(model.get_submodule(path), model.get_submodule(norm))
    for path, stand in stands.items():
        old = model.get_submodule(path)
        new = {"empty": EmptyOutput, "identity": _identity, "constant": ConstantOutput}[stand](old)
        model.set_submodule(path, new.train(old.training))


def _identity(_: nn.Module) -> nn.Module:
    return nn.Identity()


def _fold(layer: Any, norm: Any) -> None:
    """Let the bias of a layer be what the batch norm behind it makes of it."""
    if layer.bias.is_meta:
        return
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight)
        layer.bias.copy_((layer.bias - norm.running_mean) * scale + (0 if norm.bias is None else norm.bias))
