"""From an ONNX file to a smaller one: what is kept, what is handled."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import slimilar
from helpers.onnx_models import agrees, answers, classifier, images, model, pruned, saved, weights, windows
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput

NODE = helper.make_node


# --- what is kept -------------------------------------------------------------------------------------------


def test_an_unpruned_model_is_written_as_it_was_read(tmp_path):
    file = saved(classifier(), tmp_path / "a.onnx")
    read = slimilar.load_onnx(file)
    export_onnx(read, tmp_path / "b.onnx", read.example)
    assert onnx.load(tmp_path / "b.onnx") == onnx.load(file)


def test_names_opset_metadata_and_the_open_batch_are_kept(tmp_path):
    made = classifier()
    made.metadata_props.append(onnx.StringStringEntryProto(key="classes", value="a,b,c,d,e"))
    made.producer_name = "another"
    result = pruned(saved(made, tmp_path / "a.onnx"))
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    after = onnx.load(done.path)
    assert (done.inputs, done.outputs, done.opset) == (("x",), ("y",), 13)
    assert after.graph.input == made.graph.input
    assert after.graph.output == made.graph.output
    assert (after.metadata_props, after.producer_name) == (made.metadata_props, "another")
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in made.graph.node]
    assert done.bytes < (tmp_path / "a.onnx").stat().st_size
    assert done.error < 1e-4
    assert all(agrees(result.model, done.path, count=n) for n in (1, 2, 5))


def test_two_rounds_of_pruning(tmp_path):
    once = pruned(saved(classifier(), tmp_path / "a.onnx"), 0.8).model
    twice = slimilar.prune(once, once.example, flops=0.7, calibration=images(20)).model
    done = export_onnx(twice, tmp_path / "b.onnx", once.example)
    assert agrees(twice, done.path)
    again = slimilar.load_onnx(done.path)
    assert slimilar.count(again, again.example) == slimilar.count(twice, twice.example)


def test_a_channel_selection_is_written_as_a_gather(tmp_path):
    norm = {
        f"{n}_{i}": weights(16, 1, seed=5 * i + k)[:, 0] ** 2 + 0.1
        for i in (1, 2)
        for k, n in enumerate("abcd")
    }
    made = model(
        [
            NODE("Conv", ["x", "w0"], ["s0"], "stem", pads=[1] * 4),
            *(
                node
                for i in (1, 2)
                for node in (
                    NODE("BatchNormalization", [f"s{i - 1}", *(f"{n}_{i}" for n in "abcd")], [f"n{i}"], f"norm{i}"),
                    NODE("Relu", [f"n{i}"], [f"r{i}"]),
                    NODE("Conv", [f"r{i}", f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
                    NODE("Add", [f"c{i}", f"s{i - 1}"], [f"s{i}"]),
                )
            ),
            NODE("GlobalAveragePool", ["s2"], ["y"]),
        ],
        {"w0": weights(16, 3, 3, 3), "w1": weights(16, 16, 3, 3, seed=1), "w2": weights(16, 16, 3, 3, seed=2), **norm},
        {"x": ["N", 3, 16, 16]},
    )  # fmt: skip
    result = pruned(saved(made, tmp_path / "a.onnx"), residual="select")
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert result.surgery.selections
    assert agrees(result.model, done.path)
    assert "Gather" in [n.op_type for n in onnx.load(done.path).graph.node]


# --- sizes that the file fixes --------------------------------------------------------------------------------


def test_a_shape_that_counts_channels_shrinks_with_them(tmp_path):
    """Channel shuffle, as exporters write it: the number of channels is in a constant, the batch is computed."""
    made = model(
        [
            NODE("Conv", ["x", "w1"], ["c1"], "first", pads=[1] * 4),
            NODE("Relu", ["c1"], ["r1"]),
            NODE("Shape", ["r1"], ["shape"]),
            NODE("Slice", ["shape", "zero", "one"], ["batch"]),
            NODE("Concat", ["batch", "grouped"], ["five"], axis=0),
            NODE("Concat", ["batch", "flat"], ["four"], axis=0),
            NODE("Reshape", ["r1", "five"], ["a"]),
            NODE("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3, 4]),
            NODE("Reshape", ["b", "four"], ["d"]),
            NODE("Conv", ["d", "w2"], ["y"], "second"),
        ],
        {
            "w1": weights(16, 3, 3, 3), "w2": weights(4, 16, 1, 1), "zero": np.array([0]), "one": np.array([1]),
            "grouped": np.array([2, 8, 16, 16]), "flat": np.array([16, 16, 16]),
        },
        {"x": ["N", 3, 16, 16]},
    )  # fmt: skip
    result = pruned(saved(made, tmp_path / "a.onnx"))
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert 0 < result.cut.widths["first"] < 16
    assert all(agrees(result.model, done.path, count=n) for n in (1, 3))


COMPUTED = [
    NODE("Shape", ["r1"], ["shape"]),
    NODE("Slice", ["shape", "zero", "one"], ["batch"]),
    NODE("Concat", ["batch", "tail"], ["divided"], axis=0),
]


@pytest.mark.parametrize("computed", [False, True])
def test_channels_behind_what_a_shape_changes_shrink_in_the_file_too(computed, tmp_path):
    """Tokens are divided, channels stay last: the file says how many there are, as attention does."""
    sizes = {"zero": np.array([0]), "one": np.array([1]), "tail": np.array([2, 2, 16])}
    made = model(
        [
            NODE("MatMul", ["x", "w1"], ["m1"], "first"),
            NODE("Relu", ["m1"], ["r1"]),
            *(COMPUTED if computed else []),
            NODE("Reshape", ["r1", "divided"], ["d"]),
            NODE("MatMul", ["d", "w2"], ["y"], "second"),
        ],
        {"w1": weights(6, 16), "w2": weights(16, 3)}
        | (sizes if computed else {"divided": np.array([-1, 2, 2, 16])}),
        {"x": ["N", 4, 6]},
    )
    read = slimilar.load_onnx(saved(made, tmp_path / "a.onnx"))
    result = slimilar.prune(
        read, read.example, ratio=0.5, criterion="magnitude-l2", reconstruction="none", round_to=1
    )
    done = export_onnx(result.model, tmp_path / "b.onnx", read.example)
    assert result.cut.widths["first"] == 8
    assert agrees(result.model, done.path, 4, 6)


@pytest.mark.parametrize("opset", [11, 13])
def test_the_parts_of_a_split_shrink_with_their_channels(opset, tmp_path):
    sizes = {"split": [4, 12]} if opset < 13 else {}
    made = model(
        [
            NODE("Conv", ["x", "w1"], ["c1"], "first", pads=[1] * 4),
            NODE("Split", ["c1"] if sizes else ["c1", "parts"], ["a", "b"], "cut", axis=1, **sizes),
            NODE("Relu", ["a"], ["ra"]),
            NODE("Sigmoid", ["b"], ["rb"]),
            NODE("Concat", ["rb", "ra"], ["d"], axis=1),
            NODE("Conv", ["d", "w2"], ["y"], "second"),
        ],
        {
            "w1": weights(16, 3, 3, 3),
            "w2": weights(4, 16, 1, 1),
            **({} if sizes else {"parts": np.array([4, 12])}),
        },
        {"x": ["N", 3, 16, 16]},
        opset=opset,
    )
    result = pruned(saved(made, tmp_path / "a.onnx"), 0.5)
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert result.cut.widths["first"] < 16
    assert agrees(result.model, done.path)


def test_depthwise_groups_and_a_bias_that_is_gained(tmp_path):
    made = model(
        [
            NODE("Conv", ["x", "w1"], ["c1"], "first", pads=[1] * 4),
            NODE("Relu", ["c1"], ["r1"]),
            NODE("Conv", ["r1", "wd"], ["cd"], "depthwise", pads=[1] * 4, group=16),
            NODE("Relu", ["cd"], ["rd"]),
            NODE("Conv", ["rd", "w2"], ["c2"], "second"),
            NODE("GlobalAveragePool", ["c2"], ["p"]),
            NODE("Flatten", ["p"], ["f"]),
            NODE("MatMul", ["f", "wl"], ["y"], "linear"),
        ],
        {
            "w1": weights(16, 3, 3, 3),
            "wd": weights(16, 1, 3, 3),
            "w2": weights(16, 16, 1, 1),
            "wl": weights(16, 5),
        },
        {"x": ["N", 3, 16, 16]},
    )
    result = pruned(saved(made, tmp_path / "a.onnx"), reconstruction="linear")
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert result.surgery.biases
    assert agrees(result.model, done.path)


def test_a_shared_weight_is_cut_for_each_of_its_users(tmp_path):
    made = classifier()
    made.graph.node[4].input[1] = "w2"  # two convolutions with one weight
    result = pruned(saved(made, tmp_path / "a.onnx"), 0.7)
    assert agrees(result.model, export_onnx(result.model, tmp_path / "b.onnx", images(1)).path)


# --- what is handled ------------------------------------------------------------------------------------------


def test_a_fixed_batch_stays_fixed(tmp_path):
    made = classifier(batch=1)
    made.graph.node[7].CopyFrom(NODE("Reshape", ["p", "one"], ["f"]))
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 16]), "one"))
    result = pruned(saved(made, tmp_path / "a.onnx"))
    done = export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert onnx.load(done.path).graph.input == made.graph.input
    assert agrees(result.model, done.path, count=1)


def test_a_batch_fixed_inside_of_shapes_is_opened_to_calibrate_and_stays_in_the_file(tmp_path):
    made = windows()
    result = pruned(saved(made, tmp_path / "a.onnx"), round_to=1)
    done = export_onnx(result.model, tmp_path / "b.onnx", result.model.example)
    after = onnx.load(done.path)
    assert after.graph.input == made.graph.input
    assert min(result.cut.widths["first"] / 16, result.cut.widths["hidden"] / 32) < 1
    given = images(3)
    with torch.no_grad():
        wanted = result.model(given).numpy()
    found = np.concatenate([answers(done.path, {"x": image[None].numpy()})[0] for image in given])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_channels_last_and_several_outputs(tmp_path):
    made = classifier()
    made.graph.node.insert(0, NODE("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2]))
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("image", 1, ["N", 16, 16, 3]))
    made.graph.node.append(NODE("Split", ["y", "halves"], ["y1", "y2"], axis=1))
    made.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "halves"))
    del made.graph.output[:]
    made.graph.output.extend(helper.make_tensor_value_info(n, 1, ["N", None]) for n in ("y2", "s", "y1"))
    result = pruned(saved(made, tmp_path / "a.onnx"))
    done = export_onnx(result.model, tmp_path / "b.onnx", result.model.example)
    assert done.outputs == ("y2", "s", "y1")
    assert agrees(result.model, done.path, 16, 16, 3)


def test_several_inputs_without_images(tmp_path):
    made = classifier()
    made.graph.node.append(NODE("Add", ["y", "more"], ["z"]))
    made.graph.input.append(helper.make_tensor_value_info("more", 1, ["N", 5]))
    made.graph.output[0].name = "z"
    read = slimilar.load_onnx(saved(made, tmp_path / "a.onnx"))
    small = slimilar.prune(read, read.example, flops=0.6).model
    assert export_onnx(small, tmp_path / "b.onnx", read.example).inputs == ("x", "more")
    with pytest.raises(InvalidInput, match="2 inputs must be a tuple of 2 tensors"):
        slimilar.prune(read, read.example, flops=0.6, calibration=images(8))


def test_external_data_and_weights_behind_an_identity(tmp_path):
    made = classifier()
    made.graph.node.insert(0, NODE("Identity", ["w2"], ["w2_same"]))
    made.graph.node[3].input[1] = "w2_same"
    onnx.save(made, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    result = pruned(tmp_path / "a.onnx")
    assert agrees(result.model, export_onnx(result.model, tmp_path / "b.onnx", images(1)).path)
    assert (tmp_path / "a.data").is_file()


@pytest.mark.parametrize(
    ("shift", "scale", "expected"),
    [
        ([0.485, 0.456, 0.406], [0.2] * 3, "unit"),
        ([123.0, 117.0, 104.0], [58.0] * 3, "bytes"),
        (None, None, None),
    ],
)
def test_normalisation_inside_the_graph_is_found(shift, scale, expected, tmp_path):
    from slimilar.deploy.onnx_files.input_range import own_normalisation

    made = classifier()
    if shift:
        made.graph.node.insert(0, NODE("Sub", ["image", "shift"], ["centred"]))
        made.graph.node.insert(1, NODE("Div", ["centred", "scale"], ["x"]))
        made.graph.input[0].name = "image"
        for name, value in (("shift", shift), ("scale", scale)):
            array = np.array(value, np.float32).reshape(1, 3, 1, 1)
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    assert own_normalisation(slimilar.load_onnx(saved(made, tmp_path / "a.onnx"))) == expected
