"""The table of activations: what an integral over a Gaussian needs to know of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature

import torch
from torch import Tensor

from slimilar.errors import InvalidInput
from slimilar.graph.activations import plain_name

Option = float | str

# Panels end at these x for functions that bend within a few units of 0: without them a wide Gaussian,
# to which any of them looks like a corner, would be integrated badly.
_BENDS = (0.0, 1.0, -1.0, 3.0, -3.0, 8.0, -8.0, 20.0, -20.0, 40.0, -40.0)


@dataclass(frozen=True)
class Shape:
    """What the integrals need to know of an activation."""

    function: Callable[[Tensor], Tensor]
    breaks: tuple[float, ...]
    """Where it is not smooth, or bends most."""
    pieces: tuple[tuple[float, ...], ...] = ()
    """Of a piecewise polynomial: coefficients, constant first, between each two breaks."""
    monotone: bool = False


def _piecewise(breaks: tuple[float, ...], *pieces: tuple[float, ...], monotone: bool = True) -> Shape:
    edges = torch.tensor(breaks, dtype=torch.float64)
    table = torch.zeros(len(pieces), 3, dtype=torch.float64)
    for row, piece in zip(table, pieces, strict=True):
        row[: len(piece)] = torch.tensor(piece, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        constant, slope, curve = table[torch.bucketize(x, edges)].unbind(-1)
        return constant + (slope + curve * x) * x

    return Shape(function, breaks, tuple(tuple(row) for row in table.tolist()), monotone)


def _identity() -> Shape:
    return _piecewise((), (0, 1))


def _relu() -> Shape:
    return _piecewise((0,), (0,), (0, 1))


def _leaky_relu(negative_slope: float = 0.01) -> Shape:
    return _piecewise((0,), (0, negative_slope), (0, 1), monotone=negative_slope >= 0)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> Shape:
    if not min_val < max_val:
        raise InvalidInput(f"min_val must be below max_val, got {min_val} and {max_val}")
    return _piecewise((min_val, max_val), (min_val,), (0, 1), (max_val,))


def _relu6() -> Shape:
    return _hardtanh(0.0, 6.0)


def _hardsigmoid() -> Shape:
    return _piecewise((-3, 3), (0,), (1 / 2, 1 / 6), (1,))


def _hardswish() -> Shape:
    return _piecewise((-3, 3), (0,), (0, 1 / 2, 1 / 6), (0, 1), monotone=False)


def _sigmoid() -> Shape:
    return Shape(torch.sigmoid, _BENDS, monotone=True)


def _tanh() -> Shape:
    return Shape(torch.tanh, _BENDS, monotone=True)


def _silu() -> Shape:
    return Shape(lambda x: x * torch.sigmoid(x), _BENDS)


def _mish() -> Shape:
    return Shape(lambda x: x * torch.tanh(_log1pexp(x)), _BENDS)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Shape:
    """PyTorch's threshold, above which it returns x, changes nothing in the first eight digits."""
    return Shape(lambda x: _log1pexp(beta * x) / beta, tuple(x / beta for x in _BENDS), monotone=True)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Shape:
    def function(x: Tensor) -> Tensor:
        return scale * torch.where(x > 0, x, alpha * torch.expm1(input_scale * x.clamp(max=0)))

    return Shape(function, _BENDS, monotone=min(alpha, scale, input_scale) >= 0)


def _gelu(approximate: str = "none") -> Shape:
    if approximate == "tanh":
        bend = math.sqrt(2 / math.pi)
        return Shape(lambda x: x / 2 * (1 + torch.tanh(bend * (x + 0.044715 * x**3))), _BENDS)
    return Shape(lambda x: x * torch.special.ndtr(x), _BENDS)


def _log1pexp(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


SHAPES: dict[str, Callable[..., Shape]] = {
    "identity": _identity,
    "relu": _relu,
    "relu6": _relu6,
    "leaky_relu": _leaky_relu,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "silu": _silu,
    "swish": _silu,
    "mish": _mish,
    "softplus": _softplus,
    "elu": _elu,
    "gelu": _gelu,
}
"""Name (ATen's, or `identity`) -> what makes its shape from ATen's options."""


def supported(activation: str) -> bool:
    """Tell whether an activation is in the table, under any spelling of its name.

    >>> supported("aten.hardswish_.default"), supported("softmax")
    (True, False)
    """
    return plain_name(activation) in SHAPES


def without_options(activation: str) -> bool:
    """Tell whether an activation is in the table and has no option, or none that changes it much (GELU's).

    >>> without_options("mish"), without_options("leaky_relu")
    (True, False)
    """
    return supported(activation) and set(signature(SHAPES[plain_name(activation)]).parameters) <= {
        "approximate"
    }


def shape_of(activation: str, options: dict[str, Option]) -> Shape:
    """Return the shape of an activation with PyTorch's own options."""
    if not supported(activation):
        raise InvalidInput(f"activation must be one of {', '.join(SHAPES)}, got {activation!r}")
    try:
        return _made(plain_name(activation), tuple(options.items()))
    except TypeError as error:
        raise InvalidInput(f"options of {activation} must be those of PyTorch, got {options}") from error


@cache
def _made(name: str, options: tuple[tuple[str, Option], ...]) -> Shape:
    return SHAPES[name](**dict(options))
