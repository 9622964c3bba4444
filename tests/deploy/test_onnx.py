"""ONNX files answer as PyTorch does, for any batch size."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.small_networks import Mobile, PreResNet, images, trained
from slimilar.deploy import onnx as export
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput, SlimilarError, VerificationError


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
