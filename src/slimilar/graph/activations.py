"""The activation functions, by the names of their ATen operators: the one list of them."""

from __future__ import annotations

POINTWISE = frozenset(
    {
        "relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "celu", "silu", "gelu", "mish", "sigmoid", "tanh",
        "hardswish", "hardsigmoid", "softplus", "threshold", "hardshrink", "softshrink",
    }
)  # fmt: skip
"""One tensor in, one of the same shape out, each number by itself."""

ACTIVATIONS = POINTWISE | {
    "prelu", "_prelu_kernel", "rrelu", "log_sigmoid_forward", "_softmax", "_log_softmax", "_safe_softmax", "glu",
}  # fmt: skip
"""All of them: also those with weights, with several outputs, or over several numbers."""


def plain_name(operator: str) -> str:
    """Return `relu` for `ReLU`, `relu_`, `aten::relu` and `aten.relu_.default`.

    >>> plain_name("aten.hardswish_.default")
    'hardswish'
    """
    name = operator.lower().removeprefix("aten::").removeprefix("aten.")
    return name.partition(".")[0].removesuffix("_")
