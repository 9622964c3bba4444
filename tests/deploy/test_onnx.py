"""ONNX files answer as PyTorch does, for any batch size."""

from __future__ import annotations

from collections import Counter

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.small_networks import Mobile, PreResNet, images, trained
from slimilar.deploy import onnx as export
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput, SlimilarError, VerificationError
from slimilar.surgery.channel_selection import select_from


@pytest.mark.parametrize(
    ("build", "residual"),
    [(Mobile, "inner"), (lambda: PreResNet(11, 5, 0.25), "select")],
    ids=["mobile", "select"],
)
def test_answers_are_those_of_pytorch_for_any_batch(build, residual, tmp_path):
    model = slimilar.prune(trained(build()), images(1), flops=0.7, residual=residual).model.train()
    done = export_onnx(model, tmp_path / "small.onnx", images(1))
    assert model.training, "the model is left as it was"
    assert done.error is not None
    assert done.error < 1e-5
    assert (done.inputs, done.outputs) == (("input",), ("output",))
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    for count in (1, 2, 5):
        (given,) = session.run(None, {"input": images(count).numpy()})
        with torch.no_grad():
            assert torch.allclose(torch.from_numpy(given), model.eval()(images(count)), atol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["small.onnx"]


@pytest.mark.parametrize(
    ("index", "width", "kinds"),
    [
        ([4, 5, 6, 7], 64, {"Slice": 1}),
        ([0, 16, 32, 48], 64, {"Slice": 1}),
        ([4, 5, 9, 11], 64, {"Gather": 1}),  # a convolution of all 64 channels would cost more than the copy
        (
            [0, 2, 3, 4, 5, 7, *range(9, 31)],
            8,
            {},
        ),  # a narrow convolution reads all 64, those not selected with zeros
    ],
    ids=["slice", "steps", "gather", "absorbed"],
)
def test_no_gather_stays_where_a_slice_or_nothing_will_do(index, width, kinds, tmp_path):
    torch.manual_seed(0)
    norm = select_from(nn.BatchNorm2d(len(index)), torch.tensor(index))
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    stem = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Dropout(), nn.ReLU())
    net = nn.Sequential(
        stem, norm, nn.ReLU(), nn.Conv2d(len(index), width, 1), nn.BatchNorm2d(width), nn.ReLU()
    )
    file = export_onnx(net.eval(), tmp_path / "net.onnx", images(1)).path  # compares the file with PyTorch
    nodes = [node.op_type for node in onnx.load(file).graph.node]
    found = Counter(kind for kind in nodes if kind in ("Gather", "Slice", "Split", "Dropout"))
    assert found == kinds
    assert nodes.count("BatchNormalization") == 1, "folded, but for the one that the selection is in front of"
    onnx.checker.check_model(str(file), full_check=True)


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_difference", lambda *_: 0.5)
    with pytest.raises(VerificationError, match=r"differs by 0\.5"):
        export_onnx(nn.Conv2d(3, 4, 1), tmp_path / "wrong.onnx", images(1))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said_in_one_sentence(tmp_path):
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.sum().item() > 0) if bool(x.sum() > 0) else x

    with pytest.raises(SlimilarError, match="PyTorch could not export"):
        export_onnx(Odd(), tmp_path / "odd.onnx", images(1))
    with pytest.raises(InvalidInput, match="a tensor or a tuple of tensors"):
        export_onnx(Mobile(), tmp_path / "odd.onnx", {"x": images(1)})


def test_a_model_too_large_for_one_file_is_refused_before_it_is_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(InvalidInput, match="smaller than 2 GiB"):
        export_onnx(Mobile(), tmp_path / "large.onnx", images(1))
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(InvalidInput, match="pip install 'slimilar\\[onnx\\]'"):
        export_onnx(Mobile(), "small.onnx", images(1))
