"""Small ONNX models, made by hand, as exporters of other frameworks make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


def weights(*shape: int, seed: int = 0) -> Array:
    """Return random weights of a size at which signals neither grow nor vanish."""
    fan = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / fan**0.5).astype(np.float32)


def model(
    nodes: Sequence[Any],
    tensors: Mapping[str, Array],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    opset: int = 13,
) -> Any:
    """Return a valid model."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def classifier(width: int = 16, batch: int | str = "N") -> Any:
    """Return convolutions with folded batch norms, a residual addition, and a linear layer."""
    node = helper.make_node
    return model(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"]),
            node("Conv", ["r1", "w2"], ["c2"], "second", pads=[1, 1, 1, 1]),
            node("Relu", ["c2"], ["r2"]),
            node("Conv", ["r2", "w3", "b3"], ["c3"], "third", pads=[1, 1, 1, 1]),
            node("Add", ["c3", "r1"], ["s"]),
            node("GlobalAveragePool", ["s"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "wl", "bl"], ["y"], "linear", transB=1),
        ],
        {
            "w1": weights(width, 3, 3, 3), "b1": weights(width, 1, seed=1)[:, 0],
            "w2": weights(width, width, 3, 3, seed=2),
            "w3": weights(width, width, 3, 3, seed=3), "b3": weights(width, 1, seed=4)[:, 0],
            "wl": weights(5, width, seed=5), "bl": weights(5, 1, seed=6)[:, 0],
        },
        {"x": [batch, 3, 16, 16]},
    )  # fmt: skip


def saved(made: Any, path: Path) -> Path:
    """Write a model and return where."""
    onnx.save(made, path)
    return path


def answers(path: Path | Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Return what ONNX Runtime answers, with all its optimisations."""
    import onnxruntime

    content = path.read_bytes() if isinstance(path, Path) else path.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(feeds))
    return found
