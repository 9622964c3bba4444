"""Which multiple a runtime likes: found by timing a few layers, kept for the machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimilar
from slimilar.deploy import layer_times
from slimilar.deploy.rounding_measurement import measured_multiple, penalties
from slimilar.errors import InvalidInput
from slimilar.planning.time_model import LayerShape

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMILAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def padded_to(multiple: int):
    """Return a clock on which layers take the time of their widths rounded up."""

    def timer(shape: LayerShape, inputs: int, outputs: int, *_: object) -> float:
        i, o = (-(-width // multiple) * multiple for width in (inputs, outputs))
        return float(o if shape.groups == 0 else i * o)

    return timer


@pytest.mark.parametrize("multiple", [4, 8, 16, 32])
def test_a_runtime_that_pads_to_a_multiple_likes_it(multiple, monkeypatch):
    clock = padded_to(multiple)
    monkeypatch.setitem(layer_times._TIMERS, "onnxruntime", clock)
    assert penalties(clock)[16] == pytest.approx(1.0 if multiple < 32 else 1.5, abs=0.2)
    assert measured_multiple("onnxruntime", CPU) <= multiple
    assert measured_multiple("onnxruntime", CPU) >= multiple // 4, "a few channels of padding are within 15 %"


def test_it_is_measured_once_and_decides_on_widths(monkeypatch, folder):
    asked = []

    def timer(*given: object) -> float:
        asked.append(given)
        return padded_to(32)(*given)

    monkeypatch.setitem(layer_times._TIMERS, "onnxruntime", timer)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 96, 3), nn.BatchNorm2d(96), nn.ReLU(), nn.Conv2d(96, 4, 3)).eval()
    nn.init.normal_(net[1].weight)
    nn.init.normal_(net[1].bias)
    results = [
        slimilar.prune(net, torch.zeros(1, 3, 8, 8), flops=0.8, round_to="measure", runtime="onnxruntime")
        for _ in range(2)
    ]
    assert [result.model[0].out_channels for result in results] == [64, 64]
    assert slimilar.prune(net, torch.zeros(1, 3, 8, 8), flops=0.84).model[0].out_channels == 80
    assert len(asked) == len(set(asked)) * 3, "three rounds, once"
    assert len(list(folder.iterdir())) == 1


def test_a_plan_alone_cannot_measure():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)).eval()
    nn.init.normal_(net[1].weight)
    plan = slimilar.analyze(net, torch.zeros(1, 3, 8, 8))
    with pytest.raises(InvalidInput, match="round_to must be measured in a runtime: pass"):
        plan.at(flops=0.5, round_to="measure")


def test_a_runtime_without_layers_is_told():
    with pytest.raises(InvalidInput, match=r'must be a number or "auto" for tensorrt'):
        measured_multiple("tensorrt", CPU)
