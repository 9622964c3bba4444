"""int8 files: real ones, of ONNX Runtime's own quantiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import slimilar
from helpers.small_networks import VGG, images, trained
from slimilar.deploy.activation_ranges import RULES, Activation
from slimilar.deploy.bias_correction import correct_biases, mean_shift
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput

pytestmark = pytest.mark.engines
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return slimilar.prune(trained(VGG(classes=5, width=0.5)), images(1), flops=0.6).model


@pytest.fixture(scope="module")
def shown():
    return torch.randn(32, *images(1).shape[1:], generator=torch.Generator().manual_seed(0))


def test_a_pruned_model_in_int8_answers_like_the_float_one(small, shown, tmp_path):
    from slimilar.deploy.quantization import OnnxSession, quantise

    plain = export_onnx(small, tmp_path / "float.onnx", images(1)).path
    done = quantise(plain, tmp_path / "int8.onnx", shown, seconds=0)
    assert done.bytes < 0.6 * plain.stat().st_size
    assert done.error < 0.1
    assert done.agreement > 0.8
    kinds = {entry.name for entry in OnnxSession(done.path).session.get_inputs()}
    assert kinds == {"input"}
    assert OnnxSession(done.path)(shown[:3]).shape == (3, 5)
    with pytest.raises(InvalidInput, match="got none"):
        quantise(plain, tmp_path / "none.onnx", shown[:0])
    few = quantise(plain, tmp_path / "few.onnx", shown[:3], seconds=0)  # fewer than a usual batch
    assert few.path.exists()
    assert few.images == 1
    fixed = export_onnx(small, tmp_path / "fixed.onnx", shown[:4], dynamic_batch=False).path
    with pytest.raises(InvalidInput, match="at least the 4 images of a fixed batch, got 3"):
        quantise(fixed, tmp_path / "short.onnx", shown[:3])
    assert not (tmp_path / "short.onnx").exists()
    assert quantise(fixed, tmp_path / "whole.onnx", shown[:14], seconds=0).images == 4


def test_the_setting_is_chosen_on_images_that_were_held_out(small, shown, tmp_path):
    from slimilar.calibration.divergence import divergence_by_image
    from slimilar.deploy.quantization import OnnxSession, Setting, quantise

    plain = export_onnx(small, tmp_path / "float.onnx", images(1)).path
    done = quantise(plain, tmp_path / "int8.onnx", shown, seconds=0)
    assert {setting.ranges for setting in done.divergence} == set(RULES)
    assert done.divergence[done.setting] == min(done.divergence.values())
    assert [s.corrected for s in done.divergence] == [False] * 3 + [True] * 3
    held = shown.view(8, 4, *shown.shape[1:])[1::2].flatten(0, 1)
    given, wanted = ([OnnxSession(file)(held)] for file in (done.path, plain))
    assert done.images == len(held) == 16
    assert done.held_out
    found = float(divergence_by_image(given, wanted).sqrt().mean())
    assert found == pytest.approx(done.divergence[done.setting], rel=1e-3)
    one = quantise(plain, tmp_path / "one.onnx", shown[:1], seconds=0)
    assert list(one.divergence) == [Setting("min-max")]  # nothing to choose with
    assert not one.held_out
    named = quantise(plain, tmp_path / "named.onnx", shown, ranges="99.99 %", seconds=0)
    assert list(named.divergence) == [Setting("99.99 %")]
    assert named.divergence[named.setting] == done.divergence[named.setting]
    with pytest.raises(InvalidInput, match="ranges must be one of"):
        quantise(plain, tmp_path / "named.onnx", shown, ranges="entropy")


def test_min_max_is_what_onnx_runtime_calibrates(small, shown, tmp_path):
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from slimilar.deploy.quantization import _split, quantise

    class Reader:
        def __init__(self, batches):
            self.batches = iter(batches)

        def get_next(self):
            batch = next(self.batches, None)
            return None if batch is None else {"input": batch.numpy()}

    plain = export_onnx(small, tmp_path / "float.onnx", images(1)).path
    quant_pre_process(str(plain), str(tmp_path / "ready.onnx"), skip_symbolic_shape=True)
    fit, _ = _split(shown, "batch")
    quantization.quantize_static(
        str(tmp_path / "ready.onnx"), str(tmp_path / "theirs.onnx"), Reader(fit), per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    ours = quantise(plain, tmp_path / "ours.onnx", shown, ranges="min-max", seconds=0).path
    mine, theirs = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
        for file in (ours, tmp_path / "theirs.onnx")
    )
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        one = int(value.dtype.kind in "iu")  # of rounded biases, whose scale has a rounding error
        np.testing.assert_allclose(mine[name], value, rtol=1e-5, atol=one, err_msg=name)


def test_an_outlier_does_not_set_the_range_of_a_percentile():
    values = np.append(np.random.default_rng(0).uniform(-1, 2, 100_000), 300.0)
    seen = Activation(-1.0, 300.0, values, np.zeros(1))
    assert RULES["min-max"](seen) == (-1.0, 300.0)
    np.testing.assert_allclose(RULES["99.99 %"](seen), (-1, 2), rtol=1e-3)


def test_the_range_of_least_squared_error_against_pytorch_fake_quantisation():
    values = np.random.default_rng(0).standard_t(4, 20_000).astype(np.float32)
    seen = Activation(float(values.min()), float(values.max()), values, np.zeros(1))

    def error(low, high):
        scale = (high - low) / 255
        rounded = torch.fake_quantize_per_tensor_affine(
            torch.from_numpy(values), scale, round(-low / scale), 0, 255
        )
        return float((rounded - torch.from_numpy(values)).square().mean())

    chosen = RULES["least squared error"](seen)
    assert chosen[1] < seen.high
    others = [error(seen.low * share, seen.high * share) for share in np.linspace(0.1, 1, 50)]
    assert error(*chosen) < 1.02 * min(others)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(6, 4, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 3, groups=2)]
)
def test_the_mean_output_of_rounded_weights_is_corrected(layer):
    from slimilar.deploy.bias_correction import rounding_error

    x = torch.rand(3, 6, 5, 5, dtype=torch.float64) + torch.arange(6.0, dtype=torch.float64).view(1, 6, 1, 1)
    x = x.mean((0, 2, 3), keepdim=True).expand(1, 6, 5, 5)  # no borders: every window has the same mean
    weight = layer.weight.detach().double()
    error = torch.from_numpy(rounding_error(weight.numpy()))
    moved = nn.functional.conv2d(x, error, groups=layer.groups).mean((0, 2, 3))
    found = mean_shift(weight.numpy(), x[0, :, 0, 0].numpy(), layer.groups)
    torch.testing.assert_close(torch.from_numpy(found), moved)


def test_biases_are_corrected_in_the_file(tmp_path):
    from slimilar.deploy.quantization import OnnxSession

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).eval()
    x = torch.randn(2, 3, 4, 4)
    plain = export_onnx(net, tmp_path / "float.onnx", x).path
    means = {"input": np.array([1.0, 2.0, 3.0])}  # of the convolution's input only
    assert correct_biases(plain, tmp_path / "corrected.onnx", means) == 1
    with torch.no_grad():
        net[0].bias -= torch.from_numpy(mean_shift(net[0].weight.double().numpy(), means["input"])).float()
        torch.testing.assert_close(OnnxSession(tmp_path / "corrected.onnx")(x), net(x), rtol=1e-4, atol=1e-5)
