"""Operators on every number for itself, and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slimilar.deploy.onnx_files.operators.table import Built, OnnxNode, Unreadable, converter, layer

_MODULES: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "Relu": lambda s: nn.ReLU(),
    "Sigmoid": lambda s: nn.Sigmoid(),
    "Tanh": lambda s: nn.Tanh(),
    "HardSwish": lambda s: nn.Hardswish(),
    "Mish": lambda s: nn.Mish(),
    "Softsign": lambda s: nn.Softsign(),
    "Softplus": lambda s: nn.Softplus(),
    "Selu": lambda s: nn.SELU(),
    "Elu": lambda s: nn.ELU(s.get("alpha", 1.0)),
    "Celu": lambda s: nn.CELU(s.get("alpha", 1.0)),
    "LeakyRelu": lambda s: nn.LeakyReLU(s.get("alpha", 0.01)),
    "Gelu": lambda s: nn.GELU(s.get("approximate", b"none").decode()),
    "Identity": lambda s: nn.Identity(),
}


@converter(*_MODULES)
def activation(node: OnnxNode) -> Built:
    """Return torch's module of the same name."""
    node.tensor(0)
    if node.kind == "Selu" and {"alpha", "gamma"} & set(node.settings):
        raise Unreadable("alpha or gamma")
    return Built(_MODULES[node.kind](node.settings), (0,))


@converter("Dropout")
def dropout(node: OnnxNode) -> Built:
    """Return the identity: the file is run, not trained."""
    if node.outputs > 1:
        raise Unreadable("a mask as a second output")
    return Built(nn.Identity(), (0,))


@converter("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Built:
    """Return a hard sigmoid."""
    alpha, beta = node.settings.get("alpha", 0.2), node.settings.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return Built(nn.Hardsigmoid(), (0,))
    return layer(node, partial(_hard_sigmoid, alpha=alpha, beta=beta))


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return (x * alpha + beta).clamp(0, 1)


@converter("Softmax", "LogSoftmax")
def softmax(node: OnnxNode) -> Built:
    """Return a softmax; before opset 13 it is one over all axes from the given one on."""
    x = node.tensor(0)
    function = torch.softmax if node.kind == "Softmax" else torch.log_softmax
    axis = node.settings.get("axis", -1 if node.opset >= 13 else 1)
    if node.opset >= 13 or axis % x.ndim == x.ndim - 1:
        return layer(node, partial(function, dim=axis))
    return layer(node, partial(_flat_softmax, function=function, axis=axis))


def _flat_softmax(x: Tensor, function: Callable[..., Tensor], axis: int) -> Tensor:
    return function(x.flatten(axis), dim=-1).reshape(x.shape)


@converter("Clip")
def clip(node: OnnxNode) -> Built:
    """Return a clamp."""
    limits = [node.settings.get("min"), node.settings.get("max")]
    if node.opset >= 11:
        held = [node.constant(k) for k in (1, 2)]
        limits = [None if c is None else c.value.item() for c in held]
    low, high = limits
    if (low, high) == (0, 6):
        return Built(nn.ReLU6(), (0,))
    return layer(node, partial(torch.clamp, min=low, max=high), [0])


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Neg": torch.neg, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal, "Erf": torch.erf, "Floor": torch.floor, "Ceil": torch.ceil,
    "Round": torch.round, "Sign": torch.sign, "Sin": torch.sin, "Cos": torch.cos, "Not": torch.logical_not,
}  # fmt: skip


@converter(*_UNARY)
def unary(node: OnnxNode) -> Built:
    """Return torch's function of the same name."""
    return layer(node, _UNARY[node.kind])


_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Pow": torch.pow, "Equal": torch.eq, "Less": torch.lt,
    "Greater": torch.gt, "LessOrEqual": torch.le, "GreaterOrEqual": torch.ge, "And": torch.logical_and,
    "Or": torch.logical_or,
}  # fmt: skip


@converter("Div", *_BINARY)
def binary(node: OnnxNode) -> Built:
    """Return a function of two tensors that broadcast."""
    if node.settings.get("broadcast") or "axis" in node.settings:
        raise Unreadable("broadcasting as before opset 7")
    function = _divide if node.kind == "Div" else _BINARY[node.kind]
    return layer(node, partial(_broadcast, function=function))


def _broadcast(a: Tensor | float, b: Tensor | float, function: Callable[..., Tensor]) -> Tensor:
    """Call a function of which torch wants the first argument to be a tensor."""
    if isinstance(a, Tensor) or function is torch.pow:
        return function(a, b)
    assert isinstance(b, Tensor)
    if function in (torch.add, torch.mul):
        return function(b, a)
    return function(torch.full((), a, dtype=b.dtype, device=b.device), b)


def _divide(a: Tensor, b: Tensor | float) -> Tensor:
    whole = isinstance(b, Tensor) and not a.is_floating_point() and not b.is_floating_point()
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


@converter("Sum", "Mean", "Max", "Min")
def variadic(node: OnnxNode) -> Built:
    """Return a function of any number of tensors."""
    functions: dict[str, Any] = {
        "Sum": torch.add,
        "Mean": torch.add,
        "Max": torch.maximum,
        "Min": torch.minimum,
    }
    share = 1 / len(node.inputs) if node.kind == "Mean" else 1.0
    return layer(node, partial(_folded, function=functions[node.kind], share=share), numbers=False)


def _folded(*inputs: Tensor, function: Callable[[Tensor, Tensor], Tensor], share: float) -> Tensor:
    total = reduce(function, inputs)
    return total if share == 1 else total * share


@converter("Where")
def where(node: OnnxNode) -> Built:
    """Return a choice between two tensors."""
    return layer(node, torch.where, numbers=False)


@converter("Cast")
def cast(node: OnnxNode) -> Built:
    """Return another type of number."""
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: torch.float64}
    if node.settings["to"] not in kinds:
        raise Unreadable(f"the type of number {node.settings['to']}")
    return layer(node, partial(Tensor.to, dtype=kinds[node.settings["to"]]))


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
}  # fmt: skip


@converter("ReduceL2", *_REDUCTIONS)
def reduction(node: OnnxNode) -> Built:
    """Return a reduction over some axes."""
    axes = node.numbers(1, "axes")
    if not axes and node.settings.get("noop_with_empty_axes", 0):
        return Built(nn.Identity(), (0,))
    every = list(axes or range(node.tensor(0).ndim))
    keep = bool(node.settings.get("keepdims", 1))
    if node.kind == "ReduceL2":
        return layer(node, partial(torch.linalg.vector_norm, dim=every, keepdim=keep), [0])
    return layer(node, partial(_REDUCTIONS[node.kind], dim=every, keepdim=keep), [0])


@converter("ArgMax", "ArgMin")
def arg_extreme(node: OnnxNode) -> Built:
    """Return the place of the largest or smallest number along an axis."""
    if node.settings.get("select_last_index", 0):
        raise Unreadable("select_last_index")
    function = torch.argmax if node.kind == "ArgMax" else torch.argmin
    axis, keep = node.settings.get("axis", 0), bool(node.settings.get("keepdims", 1))
    return layer(node, partial(function, dim=axis, keepdim=keep))


@converter("LpNormalization")
def normalised(node: OnnxNode) -> Built:
    """Return a tensor with unit norm along an axis."""
    return layer(node, partial(F.normalize, p=node.settings.get("p", 2), dim=node.settings.get("axis", -1)))
