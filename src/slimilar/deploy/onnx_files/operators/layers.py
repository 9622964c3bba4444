"""Operators with weights: convolutions, linear layers, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slimilar.deploy.onnx_files.module import TensorPlace
from slimilar.deploy.onnx_files.operators.table import Built, OnnxNode, Unreadable, converter, layer

_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_PADS: dict[int, Any] = {1: nn.ConstantPad1d, 2: nn.ConstantPad2d, 3: nn.ConstantPad3d}


def pads_of(
    node: OnnxNode, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return the padding at the start of every axis, then at the end of every axis, as ONNX lists it."""
    mode = node.settings.get("auto_pad", b"NOTSET").decode()
    if mode == "NOTSET":
        return list(node.settings.get("pads", [0] * 2 * len(kernel)))
    if mode == "VALID":
        return [0] * 2 * len(kernel)
    sizes = zip(node.tensor(0).shape[2:], kernel, stride, dilation, strict=True)
    total = [max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n) for n, k, s, d in sizes]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return small + large if mode == "SAME_UPPER" else large + small


def is_symmetric(pads: Sequence[int]) -> bool:
    """Tell whether every axis has the same padding at both ends."""
    return list(pads[: len(pads) // 2]) == list(pads[len(pads) // 2 :])


def torch_pads(pads: Sequence[int]) -> list[int]:
    """Return padding in torch's order: last axis first, start and end beside each other.

    >>> torch_pads([1, 2, 3, 4])
    [2, 4, 1, 3]
    """
    half = len(pads) // 2
    return [p for axis in reversed(range(half)) for p in (pads[axis], pads[half + axis])]


def _weight(node: OnnxNode) -> Tensor:
    weight = node.weight(1)
    if weight is None:
        raise Unreadable("no weight")
    return weight


@converter("Conv")
def conv(node: OnnxNode) -> Built:
    """Return a convolution, with a padding module in front of it where both ends differ."""
    weight, bias = _weight(node), node.weight(2)
    rank = weight.ndim - 2
    stride, dilation = (tuple(node.settings.get(name, [1] * rank)) for name in ("strides", "dilations"))
    groups = node.settings.get("group", 1)
    pads = pads_of(node, weight.shape[2:], stride, dilation)
    even = is_symmetric(pads)
    made = _CONVOLUTIONS[rank](
        weight.shape[1] * groups, len(weight), tuple(weight.shape[2:]), stride, tuple(pads[:rank]) if even else 0,
        dilation, groups, bias is not None,
    )  # fmt: skip
    _fill(made, weight, bias)
    slots = _slots("" if even else "1.", bias is not None)
    return Built(
        made if even else nn.Sequential(_PADS[rank](tuple(torch_pads(pads)), 0.0), made), (0,), slots
    )


@converter("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Built:
    """Return a transposed convolution."""
    weight, bias = _weight(node), node.weight(2)
    rank, settings = weight.ndim - 2, node.settings
    if "output_shape" in settings or settings.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise Unreadable("an output_shape or auto_pad")
    pads = list(settings.get("pads", [0] * 2 * rank))
    if not is_symmetric(pads):
        raise Unreadable("padding that differs at both ends")
    stride, dilation = (tuple(settings.get(name, [1] * rank)) for name in ("strides", "dilations"))
    groups = settings.get("group", 1)
    made = _TRANSPOSED[rank](
        len(weight), weight.shape[1] * groups, tuple(weight.shape[2:]), stride, tuple(pads[:rank]),
        tuple(settings.get("output_padding", [0] * rank)), groups, bias is not None, dilation,
    )  # fmt: skip
    _fill(made, weight, bias)
    return Built(made, (0,), _slots("", bias is not None))


def _fill(module: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    module.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        module.bias = nn.Parameter(bias)


def _slots(prefix: str, bias: bool, transposed: bool = False) -> tuple[TensorPlace, ...]:
    weight = TensorPlace(f"{prefix}weight", 1, transposed)
    return (weight, TensorPlace(f"{prefix}bias", 2)) if bias else (weight,)


@converter("Gemm")
def gemm(node: OnnxNode) -> Built:
    """Return a linear layer."""
    settings = node.settings
    if settings.get("transA", 0) or settings.get("alpha", 1.0) != 1 or settings.get("beta", 1.0) != 1:
        raise Unreadable("transA, alpha or beta")
    weight, turned = _weight(node), not settings.get("transB", 0)
    weight = weight.T if turned else weight
    bias = node.weight(2)
    return _linear(weight, None if bias is None else bias.expand(1, len(weight))[0].clone(), turned)


@converter("MatMul")
def matmul(node: OnnxNode) -> Built:
    """Return a linear layer where the second factor is a matrix of the file, else a product."""
    if isinstance(node.inputs[1], Tensor) or isinstance(node.inputs[0], Tensor) is False:
        return layer(node, torch.matmul, numbers=False)
    weight = _weight(node)
    return _linear(weight.T, None, True) if weight.ndim == 2 else layer(node, torch.matmul, numbers=False)


@converter("Einsum")
def einsum(node: OnnxNode) -> Built:
    """Return a sum of products, as written in its equation."""
    equation = node.settings["equation"].decode().replace(" ", "")
    return layer(node, partial(_einsum, equation=equation), numbers=False)


def _einsum(*factors: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *factors)


def _linear(weight: Tensor, bias: Tensor | None, turned: bool) -> Built:
    made = nn.Linear(weight.shape[1], len(weight), bias is not None)
    _fill(made, weight, bias)
    return Built(made, (0,), _slots("", bias is not None, turned))


@converter("BatchNormalization")
def batch_norm(node: OnnxNode) -> Built:
    """Return a batch norm in evaluation mode."""
    if node.settings.get("training_mode", 0) or not node.settings.get("spatial", 1):
        raise Unreadable("training_mode, or an axis that is not spatial")
    gamma, beta, mean, var = (node.weight(k) for k in range(1, 5))
    assert gamma is not None
    assert beta is not None
    made = _NORMS[node.tensor(0).ndim](len(gamma), eps=node.settings.get("epsilon", 1e-5))
    made.weight, made.bias, made.running_mean, made.running_var = (
        nn.Parameter(gamma),
        nn.Parameter(beta),
        mean,
        var,
    )
    names = ("weight", "bias", "running_mean", "running_var")
    return Built(made, (0,), tuple(TensorPlace(name, k) for k, name in enumerate(names, 1)))


@converter("PRelu")
def prelu(node: OnnxNode) -> Built:
    """Return a PReLU with one slope for each channel, or for all, or for each place."""
    x, slope = node.tensor(0), node.weight(1)
    assert slope is not None
    per_channel = slope.numel() == 1 or (
        slope.ndim == x.ndim - 1 and slope.numel() == slope.shape[0] == x.shape[1]
    )
    if slope.numel() == 1 or not per_channel:
        return layer(node, _prelu)
    return layer(node, _prelu_channels)


def _prelu(x: Tensor, slope: Tensor | float) -> Tensor:
    return x.clamp_min(0) + x.clamp_max(0) * slope


def _prelu_channels(x: Tensor, slope: Tensor) -> Tensor:
    return F.prelu(x, slope.reshape(-1))


@converter("LayerNormalization")
def layer_norm(node: OnnxNode) -> Built:
    """Return a layer norm over the last axes."""
    axis = node.settings.get("axis", -1)
    shape = list(node.tensor(0).shape)[axis:]
    gamma, beta = _weight(node), node.weight(2)
    if node.outputs > 1 or list(gamma.shape) != shape:
        raise Unreadable("more than one output or a scale of another shape")
    made = nn.LayerNorm(shape, node.settings.get("epsilon", 1e-5), bias=beta is not None)
    _fill(made, gamma, beta)
    return Built(made, (0,), _slots("", beta is not None))


@converter("InstanceNormalization")
def instance_norm(node: OnnxNode) -> Built:
    """Return an instance norm."""
    function = partial(_instance_norm, eps=node.settings.get("epsilon", 1e-5))
    return layer(node, function, numbers=False)


def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=eps)


@converter("LRN")
def local_response_norm(node: OnnxNode) -> Built:
    """Return a local response norm."""
    settings = {new: node.settings[old] for old, new in _LRN.items() if old in node.settings}
    return layer(node, partial(F.local_response_norm, **{"alpha": 1e-4, "beta": 0.75, "k": 1.0, **settings}))


_LRN = {"size": "size", "alpha": "alpha", "beta": "beta", "bias": "k"}
