"""Times of layers in real runtimes: the cache, and times that grow with widths."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from slimilar.deploy import layer_times as module
from slimilar.deploy.layer_times import layer_times
from slimilar.planning.time_model import LayerShape
from slimilar.utils.cache import cache_folder

ONE = (1, 1)
SHAPE = LayerShape((3, 3), ONE, ONE, ONE, 1, (1, 28, 28), 64, 64)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMILAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("runtime", ["pytorch", pytest.param("onnxruntime", marks=pytest.mark.engines)])
def test_wide_layers_take_longer_than_narrow_ones(runtime, folder):
    if runtime != "pytorch":
        pytest.importorskip("onnxruntime")
    measured = layer_times(runtime, torch.device("cpu"))
    assert measured is not None
    table = measured([SHAPE])[SHAPE]
    assert table.milliseconds.shape == (len(table.inputs), len(table.outputs))
    assert (table.milliseconds > 0).all()
    assert table.at(64, 64) > table.at(16, 16)
    assert len(list(folder.iterdir())) == 1


def test_what_is_in_the_cache_is_not_measured_again(monkeypatch, folder):
    asked = []

    def timer(shape, inputs, outputs, device):
        asked.append((inputs, outputs))
        return float(inputs * outputs)

    monkeypatch.setitem(module._TIMERS, "pytorch", timer)
    measured = layer_times("pytorch", torch.device("cpu"))
    assert measured is not None
    first = measured([SHAPE, SHAPE])
    assert len(asked) == len(set(asked)) == first[SHAPE].milliseconds.size
    again = measured([SHAPE, replace(SHAPE, groups=0)])
    assert again[SHAPE].at(64, 64) == 64 * 64
    depthwise = again[replace(SHAPE, groups=0)]
    assert depthwise.milliseconds.shape == (1, len(depthwise.outputs))
    assert asked[-1] == (64, 64), "a depthwise layer has one width"
    (file,) = folder.iterdir()
    assert len(json.loads(file.read_text())) == 2


def test_a_broken_cache_is_made_anew(monkeypatch, folder):
    monkeypatch.setitem(module._TIMERS, "pytorch", lambda *_: 1.0)
    measured = layer_times("pytorch", torch.device("cpu"))
    assert measured is not None
    measured([SHAPE])
    (file,) = folder.iterdir()
    file.write_text("not json")
    assert measured([SHAPE])[SHAPE].at(64, 64) == 1.0


def test_a_runtime_without_layers_is_told():
    assert layer_times("tensorrt", torch.device("cpu")) is None


def test_the_cache_folder_can_be_named(folder, monkeypatch):
    assert cache_folder() == folder
    monkeypatch.delenv("SLIMILAR_CACHE")
    assert cache_folder().name == "slimilar"
