"""Files in half precision: read in single precision, written back in half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import slimilar
from helpers.onnx_models import answers, classifier, saved
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.runtimes import onnxruntime

IMAGES = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def in_half(made: Any, suffix: str = "") -> None:
    """Store the weights in half precision, in place."""
    for tensor in list(made.graph.initializer):
        value = numpy_helper.to_array(tensor).astype(np.float16)
        made.graph.initializer.remove(tensor)
        made.graph.initializer.append(numpy_helper.from_array(value, tensor.name + suffix))


def stored() -> Any:
    """Return a classifier with weights in half precision that are cast before use."""
    made = classifier()
    names = [tensor.name for tensor in made.graph.initializer]
    in_half(made, "_half")
    for name in names:
        made.graph.node.insert(0, helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))
    return made


def inside() -> Any:
    """Return a classifier that computes in half precision between its input and its output."""
    made = computed()
    for node in made.graph.node:
        node.input[:] = ["x_half" if name == "x" else name for name in node.input]
        node.output[:] = ["y_half" if name == "y" else name for name in node.output]
    made.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x_half"], to=TensorProto.FLOAT16))
    made.graph.node.append(helper.make_node("Cast", ["y_half"], ["y"], to=TensorProto.FLOAT))
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def computed() -> Any:
    """Return a classifier that takes, computes and returns half precision."""
    made = classifier()
    in_half(made)
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


@pytest.mark.parametrize("made", [stored, inside, computed])
def test_a_file_in_half_precision_stays_one(made, tmp_path):
    original = made()
    read = slimilar.load_onnx(saved(original, tmp_path / "a.onnx"))
    assert {p.dtype for p in read.parameters()} == {torch.float32}
    small = slimilar.prune(read, read.example, flops=0.6, calibration=IMAGES).model
    done = export_onnx(small, tmp_path / "b.onnx", read.example)
    written = onnx.load(done.path)
    floats = {t.data_type for t in written.graph.initializer} - {TensorProto.INT64}
    assert floats == {TensorProto.FLOAT16}
    assert done.bytes < 0.8 * (tmp_path / "a.onnx").stat().st_size
    assert written.graph.input == original.graph.input
    assert written.graph.output == original.graph.output
    kind = np.float16 if made is computed else np.float32
    (found,) = answers(done.path, {"x": IMAGES.numpy().astype(kind)})
    with torch.no_grad():
        wanted = small(IMAGES).numpy()
    assert found.dtype == kind
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_a_bias_that_is_gained_is_in_half_precision(tmp_path):
    made = computed()
    third = next(node for node in made.graph.node if node.name == "third")
    del third.input[2]
    read = slimilar.load_onnx(saved(made, tmp_path / "a.onnx"))
    small = slimilar.prune(read, read.example, flops=0.6, calibration=IMAGES, reconstruction="linear").model
    assert small.third.bias is not None
    written = onnx.load(export_onnx(small, tmp_path / "b.onnx", read.example).path)
    assert {t.data_type for t in written.graph.initializer} == {TensorProto.FLOAT16}


def test_unpruned_weights_are_not_rounded_again(tmp_path):
    file = saved(computed(), Path(tmp_path / "a.onnx"))
    read = slimilar.load_onnx(file)
    done = export_onnx(read, tmp_path / "b.onnx", read.example)
    assert onnx.load(done.path).graph.initializer == onnx.load(file).graph.initializer


def test_a_file_in_half_precision_can_be_timed(tmp_path):
    read = slimilar.load_onnx(saved(computed(), tmp_path / "a.onnx"))
    (found,) = onnxruntime(read, read.example)()
    assert found.dtype == np.float16
