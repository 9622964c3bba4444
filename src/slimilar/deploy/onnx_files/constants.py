"""The values of a file that images do not change, computed by ONNX Runtime: weights, shapes, grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.operators import OnnxConstant, Unreadable
from slimilar.deploy.onnx_files.reference import Array, answers, relaxed

_SHAPES = ("Shape", "Size")  # of a value that images change; themselves, images of one size do not change
_RANDOM = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


def computed_values(model: Any) -> set[str]:
    """Return the values of a graph that depend on the numbers of its inputs, not on their shapes alone."""
    held = {tensor.name for tensor in model.graph.initializer}
    found = {value.name for value in model.graph.input if value.name not in held}
    for node in model.graph.node:
        follows = node.op_type not in _SHAPES and any(name in found for name in node.input)
        if follows or node.op_type in _RANDOM:
            found.update(node.output)
    return found


def constants(
    model: Any, computed: set[str], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, OnnxConstant]:
    """Return the constants that computed values need; `feeds` are one image, and two if the batch is open."""
    helper = require("onnx").numpy_helper
    known = {t.name: helper.to_array(t) for t in model.graph.initializer}
    wanted = _needed(model, computed)
    made = [name for name in wanted if name not in known]
    runs = [answers(relaxed(model, made), feed, made) for feed in feeds] if made else []
    return {name: OnnxConstant(known[name]) for name in wanted if name in known} | {
        name: _constant(name, [run[name] for run in runs]) for name in made
    }


def _needed(model: Any, computed: set[str]) -> list[str]:
    nodes = [n for n in model.graph.node if any(name in computed for name in n.output)]
    names = [name for n in nodes for name in n.input] + [value.name for value in model.graph.output]
    return list(dict.fromkeys(name for name in names if name and name not in computed))


def _constant(name: str, runs: list[Array]) -> OnnxConstant:
    one, two = runs[0], runs[-1]
    if np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
        return OnnxConstant(one)
    if one.shape == two.shape and one.dtype.kind in "iu":
        return OnnxConstant(one, two - one)
    if one.size and one.shape[0] == 1 and two.shape == (2, *one.shape[1:]) and np.array_equal(two[:1], one):
        if np.array_equal(two[1:], one):
            return OnnxConstant(one, repeated=True)
        stride = (two[1:] - one).reshape(-1)[0] if one.dtype.kind in "iu" else None
        if stride is not None and np.array_equal(two[1:], one + stride):
            return OnnxConstant(one, stride=int(stride))
    raise Unreadable(f"the constant {name}, which depends on the batch")
