"""What ONNX Runtime answers: the reference for the module that is read, and the file's constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimilar.deploy.extras import require
from slimilar.errors import InvalidInput

Array = NDArray[Any]
_SMALL = 1e-3


def session(content: bytes, *, optimise: bool = True) -> Any:
    """Return a session of ONNX Runtime on the CPU, or say why there is none."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InvalidInput(f"opening it failed with {str(error).strip().splitlines()[0]}") from error


def relaxed(model: Any, extra: Iterable[str] = ()) -> bytes:
    """Return a copy of a model whose sizes are all open, with more of its values as outputs."""
    onnx = require("onnx")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    constant = {tensor.name for tensor in copy.graph.initializer}
    for i, value in enumerate(
        [v for v in copy.graph.input if v.name not in constant] + list(copy.graph.output)
    ):
        for a, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.Clear()
            dim.dim_param = f"open_{i}_{a}"
    present = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra if name not in present)
    content: bytes = copy.SerializeToString()
    return content


def answers(
    content: bytes, feeds: Mapping[str, Array], names: Sequence[str] | None = None
) -> dict[str, Array]:
    """Return the outputs of a model on some input, by name, computed without any optimisation."""
    opened = session(content, optimise=False)
    wanted = list(names) if names is not None else [value.name for value in opened.get_outputs()]
    return dict(zip(wanted, opened.run(wanted, dict(feeds)), strict=True)) if wanted else {}


def relative_difference(wanted: Array, given: Array) -> float:
    """Return the largest difference by the largest value; infinity where the shapes differ or numbers are no numbers.

    Values that are all below a thousandth are taken as if the largest were one: a sigmoid far from zero says nothing
    about digits.

    >>> relative_difference(np.array([1.0, -2.0]), np.array([1.0, -1.5]))
    0.25
    """
    if wanted.shape != given.shape:
        return float("inf")
    if wanted.size == 0:
        return 0.0
    a, b = wanted.astype(np.float64), given.astype(np.float64)
    gap = float(np.abs(a - b).max() / max(float(np.abs(a).max()), _SMALL))
    return gap if np.isfinite(gap) else float("inf")
