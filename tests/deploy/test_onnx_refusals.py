"""From an ONNX file to a smaller one: what is refused, and by which words."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import slimilar
from helpers.onnx_models import classifier, images, pruned, saved, windows
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput, VerificationError

NODE = helper.make_node


def refused(path, match: str, **options) -> None:
    before = {f: f.read_bytes() for f in path.parent.iterdir() if f.is_file()}
    with pytest.raises((InvalidInput, VerificationError), match=match) as caught:
        slimilar.load_onnx(path, **options)
    assert "\n" not in str(caught.value)
    assert before == {f: f.read_bytes() for f in path.parent.iterdir() if f.is_file()}


def test_files_that_are_no_onnx(tmp_path):
    file = tmp_path / "a.onnx"
    refused(file, "no such file")
    for content in (b"", b"PK\x03\x04 hello", b"\x80\x04cposix\nsystem\n."):
        file.write_bytes(content)
        refused(file, "must be")
    whole = classifier().SerializeToString()
    for share in (0.1, 0.5, 0.9, 0.999):
        file.write_bytes(whole[: int(share * len(whole))])
        refused(file, "must be")


def test_external_data_outside_missing_or_truncated(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    file = inside / "a.onnx"
    onnx.save(classifier(), file, save_as_external_data=True, location="a.data", size_threshold=0)
    data = inside / "a.data"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    refused(file, "truncated")
    data.unlink()
    refused(file, "missing")
    (tmp_path / "secret").write_bytes(whole)
    data.symlink_to(tmp_path / "secret")
    refused(file, "own folder")
    data.unlink()
    for place in ("../secret", str(tmp_path / "secret"), "/etc/passwd", "x/../../secret"):
        made = onnx.load(file, load_external_data=False)
        for tensor in made.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = place
        file.write_bytes(made.SerializeToString())
        refused(file, "own folder")


def with_node(node, **changes):
    made = classifier(**changes)
    made.graph.node.append(node)
    made.graph.output[0].name = node.output[0]
    return made


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (with_node(NODE("DynamicQuantizeLinear", ["y"], ["q", "s", "z"])), "quantised"),
        (with_node(NODE("TopK", ["y", "k"], ["z", "i"])), "TopK"),
        (with_node(NODE("FusedConv", ["y"], ["z"], domain="com.microsoft")), "com.microsoft"),
        (with_node(NODE("Resize", ["c1", "", "half"], ["z"], mode="linear",
                        coordinate_transformation_mode="tf_crop_and_resize")), "Resize|running it failed|opening"),
    ],
    ids=["quantised", "unknown", "domain", "setting"],
)  # fmt: skip
def test_what_cannot_be_read_is_named(made, match, tmp_path):
    made.graph.initializer.append(numpy_helper.from_array(np.array([2]), "k"))
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "half"))
    refused(saved(made, tmp_path / "a.onnx"), match)


def test_other_inputs_and_open_sizes_are_named(tmp_path):
    made = classifier()
    made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    refused(saved(made, tmp_path / "a.onnx"), "UINT8")
    made = classifier()
    made.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    file = saved(made, tmp_path / "b.onnx")
    refused(file, r"3x\?x16")
    refused(file, "3 numbers", shape=(3, 16))
    assert slimilar.load_onnx(file, (3, 24, 16)).example.shape == (1, 3, 24, 16)


def test_a_batch_that_cannot_be_opened_is_named(tmp_path):
    refused(saved(windows(2), tmp_path / "a.onnx"), r"the operator Concat fixes the batch to 2")


def test_files_too_large_for_one_piece(tmp_path, monkeypatch):
    """External data counts as often as it is named: a small file must not fill the memory."""
    file = tmp_path / "a.onnx"
    onnx.save(classifier(), file, save_as_external_data=True, location="a.data", size_threshold=0)
    made = onnx.load(file, load_external_data=False)
    made.graph.initializer.extend(made.graph.initializer[0] for _ in range(200))
    file.write_bytes(made.SerializeToString())
    monkeypatch.setattr("slimilar.deploy.onnx_files.opening.LARGEST", 2**18)
    refused(file, "smaller than 2 GiB")


def test_a_difference_names_its_operator(tmp_path, monkeypatch):
    from slimilar.deploy.onnx_files.operators import CONVERTERS
    from slimilar.deploy.onnx_files.operators.table import Built

    monkeypatch.setitem(CONVERTERS, "Relu", lambda node: Built(torch.nn.GELU(), (0,)))
    refused(saved(classifier(), tmp_path / "a.onnx"), r"differ at the operator Relu")


def test_a_failing_comparison_leaves_the_old_file(tmp_path, monkeypatch):
    result = pruned(saved(classifier(), tmp_path / "a.onnx"))
    monkeypatch.setattr("slimilar.deploy.onnx_files.verify.relative_difference", lambda *_: 0.5)
    (tmp_path / "b.onnx").write_text("precious")
    with pytest.raises(VerificationError, match=r"differs by 0\.5"):
        export_onnx(result.model, tmp_path / "b.onnx", images(1))
    assert (tmp_path / "b.onnx").read_text() == "precious"
