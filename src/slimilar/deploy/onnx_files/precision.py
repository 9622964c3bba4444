"""Files in half precision: read as the same graph in single precision, written back in half.

Fits and comparisons need single precision. What is rounded when a file is written is its weights, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.reference import Array

_FLOAT, _HALF = 1, 10


def is_half(model: Any) -> bool:
    """Tell whether a model holds or computes anything in half precision."""
    return (
        any(t.data_type == _HALF for t in _tensors(model))
        or any(a.i == _HALF for a in _casts(model))
        or any(v.type.tensor_type.elem_type == _HALF for v in (*model.graph.input, *model.graph.output))
    )


def in_single_precision(model: Any) -> Any:
    """Return the same model in single precision; one without half precision is returned as it is."""
    if not is_half(model):
        return model
    onnx = require("onnx")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in _tensors(copy):
        if tensor.data_type == _HALF:
            value = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    for attribute in _casts(copy):
        attribute.i = _FLOAT if attribute.i == _HALF else attribute.i
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if value.type.tensor_type.elem_type == _HALF:
            value.type.tensor_type.elem_type = _FLOAT
    return copy


def as_declared(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs in the precision in which a model takes them."""
    half = {value.name for value in model.graph.input if value.type.tensor_type.elem_type == _HALF}
    return {name: x.astype(np.float16) if name in half else x for name, x in feeds.items()}


def _tensors(model: Any) -> Iterator[Any]:
    """Return the tensors that a model holds: initialisers, and those in attributes, as of Constant."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _casts(model: Any) -> Iterator[Any]:
    """Return the attributes that name a type of number."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and node.op_type in ("Cast", "EyeLike", "RandomNormalLike"):
                yield attribute
