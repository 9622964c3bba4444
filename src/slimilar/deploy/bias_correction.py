r"""Bias correction: what rounded weights add to a layer's output on average is taken off its bias.

With weights $W$, rounded to $\hat W$, and inputs of mean $E[x]$ in each channel, the output of a layer moves by
$(\hat W - W)\,E[x]$ on average. Nagel et al., Data-Free Quantization (ICCV 2019), subtract that from the bias. Nothing
is added to the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimilar.deploy.extras import require

Floats = NDArray[np.float64]

_LARGEST = 127  # of symmetric int8


def rounding_error(weight: Floats) -> Floats:
    """Return what rounding to int8, symmetric and with a scale for each output channel, adds to weights.

    >>> rounding_error(np.array([[127.0, 0.25], [1.0, 1.0]])).tolist()
    [[0.0, -0.25], [0.0, 0.0]]
    """
    largest = np.abs(weight.reshape(len(weight), -1)).max(1)
    scale = np.where(largest > 0, largest, 1.0).reshape(-1, *[1] * (weight.ndim - 1)) / _LARGEST
    found: Floats = np.rint(weight / scale) * scale - weight
    return found


def mean_shift(weight: Floats, means: Floats, groups: int = 1) -> Floats:
    """Return by how much rounding moves each output of a convolution or linear layer, for means of its inputs.

    >>> mean_shift(np.array([[127.0, 0.25], [1.0, 1.0]]), np.array([5.0, 4.0])).tolist()
    [-1.0, 0.0]
    """
    error = rounding_error(weight).reshape(*weight.shape[:2], -1).sum(-1)
    outputs, inputs = error.shape
    found: Floats = np.einsum("goi,gi->go", error.reshape(groups, -1, inputs), means.reshape(groups, inputs))
    return found.reshape(outputs)


def correct_biases(source: Path, path: Path, means: Mapping[str, NDArray[Any]]) -> int:
    """Write an ONNX file with corrected biases; return how many layers have one. `means` are by tensor name."""
    onnx = require("onnx")
    arrays, model = onnx.numpy_helper, onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    done = 0
    for node in model.graph.node:
        shift = _shift(node, tensors, means)
        if shift is None or uses[node.input[2]] > 1:  # a shared bias would need one correction for all
            continue
        bias = tensors[node.input[2]]
        value = (arrays.to_array(bias) - shift).astype(np.float32)
        bias.CopyFrom(arrays.from_array(value, bias.name))
        done += 1
    onnx.save(model, path)
    return done


def _shift(node: Any, tensors: Mapping[str, Any], means: Mapping[str, NDArray[Any]]) -> Floats | None:
    """Return the shift of a layer's outputs; None without constant weights, biases, or means of its inputs."""
    if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3 or not set(node.input[1:]) <= set(tensors):
        return None
    settings = {a.name: a for a in node.attribute}
    groups = settings["group"].i if "group" in settings else 1
    weight = require("onnx").numpy_helper.to_array(tensors[node.input[1]]).astype(np.float64)
    if node.op_type == "Gemm":
        scaled = any(settings[name].f != 1 for name in ("alpha", "beta") if name in settings)
        if scaled or ("transA" in settings and settings["transA"].i):
            return None
        weight = weight if "transB" in settings and settings["transB"].i else weight.T
    mean = np.asarray(means.get(node.input[0], ()), np.float64)
    fits = len(mean) == groups * weight.shape[1] and list(tensors[node.input[2]].dims) == [len(weight)]
    return mean_shift(weight, mean, groups) if fits else None
