"""Each converter against ONNX Runtime, on a file with that operator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

import slimilar
from helpers.onnx_models import answers, model, saved, weights
from slimilar.deploy.onnx_files.operators import CONVERTERS
from slimilar.errors import InvalidInput
from slimilar.utils.pytree import tensors_in

IMAGE = (4, 6, 6)
CHANNELS = {"c": weights(4, 1, 1) + 2}
VECTOR = weights(10, 1)[:, 0]


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


# operator, constants (the image is the first input unless a name "x" stands elsewhere), settings, outputs, opset
CASES: list[tuple[str, dict[str, Any], dict[str, Any], int, int]] = [
    ("Conv", {"w": weights(6, 4, 3, 3)}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, 1, 13),
    ("Conv", {"w": weights(6, 4, 3, 3), "b": VECTOR[:6]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, 1, 13),
    ("Conv", {"w": weights(6, 4, 3, 3)}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, 1, 13),
    ("Conv", {"w": weights(8, 1, 3, 3)}, {"group": 4, "dilations": [2, 2]}, 1, 22),
    ("ConvTranspose", {"w": weights(4, 3, 3, 3)}, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}, 1, 9),
    ("BatchNormalization", {n: VECTOR[i : i + 4] ** 2 + 0.1 for i, n in enumerate("abcd")}, {"epsilon": 1e-3}, 1, 13),
    ("InstanceNormalization", {"a": weights(4, 1)[:, 0], "b": weights(4, 1)[:, 0]}, {}, 1, 13),
    ("LayerNormalization", {"a": weights(6, 1)[:, 0], "b": weights(6, 1)[:, 0]}, {"axis": -1}, 1, 17),
    ("LRN", {}, {"size": 3, "alpha": 0.1}, 1, 13),
    ("PRelu", {"s": weights(4, 1, 1)}, {}, 1, 13),
    ("PRelu", {"s": weights(1, 1, 1)}, {}, 1, 13),
    ("PRelu", {"s": weights(4, 6, 6)}, {}, 1, 13),
    ("MatMul", {"w": weights(6, 3)}, {}, 1, 13),
    ("MaxPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}, 1, 13),
    ("MaxPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 1, 13),
    ("MaxPool", {}, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [1, 1]}, 1, 13),
    ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 1, 13),
    ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, 1, 13),
    ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1]}, 1, 13),
    ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "count_include_pad": 1}, 1, 13),
    ("GlobalAveragePool", {}, {}, 1, 13),
    ("GlobalMaxPool", {}, {}, 1, 13),
    ("Upsample", {"s": np.array([1, 1, 2, 2], np.float32)}, {"mode": "nearest"}, 1, 9),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}, {}, 1, 13),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.5, 1.5], np.float32)}, {}, 1, 13),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.5, 1.5], np.float32)},
     {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 1, 13),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}, {"mode": "linear"}, 1, 13),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)},
     {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, 1, 13),
    ("Resize", {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)},
     {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"}, 1, 13),
    *[(kind, {}, {}, 1, 14)
      for kind in ("Relu", "Sigmoid", "Tanh", "HardSwish", "Softsign", "Softplus", "Selu", "Elu", "LeakyRelu",
                                        "Identity", "HardSigmoid", "Abs", "Neg", "Exp", "Reciprocal", "Erf",
                                        "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Dropout")],
    ("Mish", {}, {}, 1, 18),
    ("Gelu", {}, {"approximate": "tanh"}, 1, 20),
    ("Celu", {}, {"alpha": 0.5}, 1, 13),
    ("HardSigmoid", {}, {"alpha": 1 / 6, "beta": 0.5}, 1, 13),
    ("Softmax", {}, {"axis": 1}, 1, 13),
    ("Softmax", {}, {"axis": 1}, 1, 11),
    ("LogSoftmax", {}, {"axis": -1}, 1, 13),
    ("Clip", {"lo": np.array(0, np.float32), "hi": np.array(6, np.float32)}, {}, 1, 13),
    ("Clip", {}, {"min": -0.5, "max": 0.5}, 1, 9),
    *[(kind, CHANNELS, {}, 1, 13) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")],
    ("Pow", {"p": np.array(2, np.float32)}, {}, 1, 13),
    ("Mul", {"p": np.array([0.5], np.float32)}, {}, 1, 13),
    ("Sub", {"p": np.array(1.0, np.float32), "x": None}, {}, 1, 13),
    ("Div", {"p": np.array(1.0, np.float32), "x": None}, {}, 1, 13),
    ("Cast", {}, {"to": 1}, 1, 13),
    *[(kind, {}, {"axes": [2, 3], "keepdims": 0}, 1, 11)
      for kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")],
    ("ReduceMean", {"a": ints(2, 3)}, {}, 1, 18),
    ("LpNormalization", {}, {"axis": 1}, 1, 13),
    ("Reshape", {"s": ints(0, 2, 2, -1)}, {}, 1, 13),
    ("Reshape", {"s": ints(-1, 2, 2, 36)}, {"allowzero": 1}, 1, 14),
    ("Flatten", {}, {"axis": 1}, 1, 13),
    ("Transpose", {}, {"perm": [0, 2, 3, 1]}, 1, 13),
    ("Unsqueeze", {"a": ints(1, -1)}, {}, 1, 13),
    ("Unsqueeze", {}, {"axes": [1]}, 1, 11),
    ("Concat", {"x": None, "again": None}, {"axis": 1}, 1, 13),
    ("Split", {"s": ints(1, 3)}, {"axis": 1}, 2, 13),
    ("Split", {}, {"axis": 1}, 2, 13),
    ("Split", {}, {"axis": 1, "num_outputs": 2}, 2, 18),
    ("Split", {}, {"axis": 1, "split": [1, 3]}, 2, 11),
    ("Slice", {"s": ints(1, 0), "e": ints(2**62, 5), "a": ints(2, 3), "t": ints(2, 1)}, {}, 1, 13),
    ("Slice", {"s": ints(-1), "e": ints(-(2**62)), "a": ints(3), "t": ints(-1)}, {}, 1, 13),
    ("Slice", {}, {"starts": [1], "ends": [3], "axes": [1]}, 1, 9),
    ("Gather", {"i": ints(2, 0, -1)}, {"axis": 1}, 1, 13),
    ("Gather", {"i": np.array(1, np.int64)}, {"axis": 2}, 1, 13),
    ("Gather", {"i": ints(2, 0, -1, 1).reshape(2, 2)}, {"axis": 1}, 1, 13),
    ("Einsum", {"x": None, "w": weights(4, 5)}, {"equation": "n c h w, c d -> n w d h"}, 1, 13),
    ("Einsum", {"x": None, "again": None}, {"equation": "bghi,bghj->bgij"}, 1, 13),
    ("Tile", {"r": ints(1, 2, 1, 1)}, {}, 1, 13),
    ("Pad", {"p": ints(0, 0, 1, 2, 0, 0, 0, 1), "v": np.array(0.5, np.float32)}, {}, 1, 13),
    ("Pad", {}, {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}, 1, 9),
    ("Pad", {"p": ints(0, 0, 1, 2, 0, 0, 0, 1)}, {"mode": "edge"}, 1, 13),
    ("DepthToSpace", {}, {"blocksize": 2}, 1, 13),
    ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}, 1, 13),
    ("SpaceToDepth", {}, {"blocksize": 2}, 1, 13),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "constants", "settings", "outputs", "opset"),
    CASES,
    ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)],
)
def test_an_operator_alone(kind, constants, settings, outputs, opset, tmp_path):
    names = ["x" if n in ("x", "again") else n for n in constants]
    inputs = names if "x" in names else ["x", *names]
    wanted = [f"y{i}" for i in range(outputs)] if outputs > 1 else ["y"]
    node = helper.make_node(kind, inputs, wanted, "it", **settings)
    tensors = {name: value for name, value in constants.items() if value is not None}
    made = model([node], tensors, {"x": ["N", *IMAGE]}, wanted, opset)
    read = slimilar.load_onnx(saved(made, tmp_path / "one.onnx"))
    for batch in (1, 3):
        images = np.random.default_rng(1).standard_normal((batch, *IMAGE)).astype(np.float32)
        with torch.no_grad():
            found = [t.numpy() for t in tensors_in(read(torch.from_numpy(images)))]
        for a, b in zip(answers(made, {"x": images}), found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def strided(*places: int, fixed: bool = False) -> Any:
    """Return a file with `as_strided` as PyTorch exports it: places in the flattened batch, counted per image."""
    node, size = helper.make_node, int(np.prod(IMAGE))
    offsets = np.array(places).reshape(1, 2, -1)
    batch = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Squeeze", ["n"], ["count"]),
        node("Range", ["zero", "count", "one"], ["images"]),
        node("Mul", ["images", "size"], ["starts"]),
        node("Unsqueeze", ["starts", "axes"], ["first"]),
        node("Add", ["first", "offsets"], ["index"]),
    ]
    return model(
        [
            node("Reshape", ["x", "flat"], ["f"]),
            *([] if fixed else batch),
            node("Gather", ["f", "offsets" if fixed else "index"], ["y"], "it"),
        ],
        {"flat": ints(-1), "zero": np.array(0), "one": np.array(1), "size": np.array(size), "axes": ints(1, 2),
         "offsets": offsets},
        {"x": [1 if fixed else "N", *IMAGE]},
        opset=15,
    )  # fmt: skip


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("places", [range(144), [5, 143, 0, 5]], ids=["whole", "some"])
def test_a_strided_view_of_a_flattened_batch(places, fixed, tmp_path):
    made = strided(*places, fixed=fixed)
    read = slimilar.load_onnx(saved(made, tmp_path / "one.onnx"))
    images = np.random.default_rng(1).standard_normal((3, *IMAGE)).astype(np.float32)
    wanted = [answers(made, {"x": image[None]})[0] for image in images]
    with torch.no_grad():
        found = read(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(found, np.concatenate(wanted))


def test_places_in_another_image_are_refused(tmp_path):
    """Counted from the end, a place is in the last image of the batch."""
    with pytest.raises(InvalidInput, match="mix the images"):
        slimilar.load_onnx(saved(strided(0, -1), tmp_path / "one.onnx"))


def test_most_converters_are_tested():
    """Those that are not either join two computed values or are in every file of the other tests."""
    missing = set(CONVERTERS) - {case[0] for case in CASES}
    assert missing <= {
        "And", "ArgMax", "ArgMin", "Equal", "Expand", "Gemm", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log",
        "Not", "Or", "Sqrt", "Squeeze", "Where",
    }  # fmt: skip
