"""Small ONNX models, made by hand, as exporters of other frameworks make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import slimilar

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


def images(count: int, *shape: int) -> Tensor:
    """Return random images, by default of the shape that the classifier takes."""
    return torch.randn(count, *(shape or (3, 16, 16)), generator=torch.Generator().manual_seed(0))


def pruned(path: Path, flops: float = 0.6, **options: Any) -> slimilar.Result:
    """Read a file and prune it with 20 random images."""
    read = slimilar.load_onnx(path)
    shape = read.source.inputs[0].shape
    return slimilar.prune(read, read.example, flops=flops, calibration=images(20, *shape), **options)


def agrees(small: nn.Module, file: Path, *shape: int, count: int = 3) -> bool:
    """Tell whether ONNX Runtime gives for a file what the module gives that was written there."""
    given = images(count, *shape)
    with torch.no_grad():
        wanted = small(given)
    source: Any = small.source
    found = answers(file, {source.inputs[0].name: given.numpy()})
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    return all(np.allclose(a.numpy(), b, rtol=1e-3, atol=1e-4) for a, b in zip(wanted, found, strict=True))


def windows(batch: int = 1, tokens: int | None = None) -> Any:
    """Return a network on windows of 4 x 4 pixels, behind a token, in shapes that are made for a fixed batch."""
    return model(
        [
            helper.make_node("Conv", ["x", "w1"], ["c"], "first", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Reshape", ["r", "divided"], ["a"]),
            helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 4, 3, 5, 1]),
            helper.make_node("Reshape", ["b", "tokens"], ["t"]),
            helper.make_node("MatMul", ["t", "w2"], ["h"], "hidden"),
            helper.make_node("Relu", ["h"], ["g"]),
            helper.make_node("MatMul", ["g", "w3"], ["o"], "out"),
            helper.make_node("Reshape", ["o", "joined"], ["z"]),
            helper.make_node("Concat", ["token", "z"], ["q"], axis=1),
            helper.make_node("ReduceMean", ["q"], ["y"], axes=[1], keepdims=0),
        ],
        {
            "w1": weights(16, 3, 3, 3), "w2": weights(16, 32), "w3": weights(32, 5),
            "divided": np.array([batch, 16, 4, 4, 4, 4]), "tokens": np.array([tokens or 16 * batch, 16, 16]),
            "joined": np.array([batch, 256, 5]), "token": np.repeat(weights(1, 1, 5), batch, 0),
        },
        {"x": [batch, 3, 16, 16]},
    )  # fmt: skip
