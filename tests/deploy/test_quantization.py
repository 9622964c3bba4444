"""int8 files: real ones, of ONNX Runtime's own quantiser."""

from __future__ import annotations

import pytest
import torch

import slimilar
from helpers.small_networks import VGG, images, trained
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput

pytestmark = pytest.mark.engines
pytest.importorskip("onnxruntime")


def test_a_pruned_model_in_int8_answers_like_the_float_one(tmp_path):
    from slimilar.deploy.quantization import OnnxSession, quantise

    torch.manual_seed(0)
    small = slimilar.prune(trained(VGG(classes=5, width=0.5)), images(1), flops=0.6).model
    plain = export_onnx(small, tmp_path / "float.onnx", images(1)).path
    shown = torch.randn(32, *images(1).shape[1:])
    done = quantise(plain, tmp_path / "int8.onnx", shown, seconds=0)
    assert done.bytes < 0.6 * plain.stat().st_size
    assert done.error < 0.1
    assert done.agreement > 0.8
    kinds = {entry.name for entry in OnnxSession(done.path).session.get_inputs()}
    assert kinds == {"input"}
    assert OnnxSession(done.path)(shown[:3]).shape == (3, 5)
    with pytest.raises(InvalidInput, match="got none"):
        quantise(plain, tmp_path / "none.onnx", shown[:0])
    assert quantise(
        plain, tmp_path / "few.onnx", shown[:3], seconds=0
    ).path.exists()  # fewer than a usual batch
    fixed = export_onnx(small, tmp_path / "fixed.onnx", shown[:4], dynamic_batch=False).path
    with pytest.raises(InvalidInput, match="at least the 4 images of a fixed batch, got 3"):
        quantise(fixed, tmp_path / "short.onnx", shown[:3])
    assert not (tmp_path / "short.onnx").exists()
