"""bench, export and budgets of time, through the real commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.commands import answer, run
from slimilar.cli.commands.bench import Saving

DEMO = "slimilar:demo"


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    run("prune", DEMO, "--flops", "0.5", "-o", folder / "out", "-q")
    return folder / "out" / "model.safetensors"


def test_bench_tells_time_saved_by_flops_saved(half, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # headings are not folded
    found = answer("bench", DEMO, half, "--seconds", 0.1, "--threads", 1, "--layers", 3)
    (saving,) = found["savings"]
    assert saving["flops"] <= 0.5
    assert saving["ratio"] == pytest.approx((1 - saving["time"]) / (1 - saving["flops"]))
    layers = found["layers"]["pytorch"]
    assert {"name", "kind", "milliseconds"} == set(layers[DEMO][0])
    assert layers[DEMO][0]["milliseconds"] >= layers[DEMO][-1]["milliseconds"]
    text = run("bench", DEMO, half, "--seconds", 0.1, "--threads", 1, "--layers", 2)
    assert "time saved / FLOPs saved" in text
    assert "the slowest of" in text


def test_a_model_of_the_same_size_has_no_ratio():
    assert Saving("pytorch", "a", 1.0, 0.9, slower=False).ratio is None


@pytest.mark.parametrize("suffix", ["pt2", "ts"])
def test_files_of_pytorch(half, tmp_path, suffix):
    found = answer("export", half, "-o", tmp_path / f"small.{suffix}")
    assert found["error"] < 1e-4
    assert Path(found["file"]).stat().st_size == found["bytes"]


def test_a_format_that_is_not_known_is_refused(half, tmp_path):
    assert "must end in .onnx, .pt2, .ts, got 'small.pth'" in run(
        "export", half, "-o", tmp_path / "small.pth", code=2
    )
    assert not (tmp_path / "small.pth").exists()


def test_int8_needs_images(half, tmp_path):
    assert "--calibrate" in run("export", half, "-o", tmp_path / "a.onnx", "--int8", code=2)
    assert "--int8" in run("export", half, "-o", tmp_path / "a.onnx", "--calibrate", "demo", code=2)


@pytest.mark.engines
def test_int8_tells_accuracy_size_and_time(half, tmp_path):
    pytest.importorskip("onnxruntime")
    found = answer(
        "export", half, "-o", tmp_path / "int8.onnx", "--int8", "--calibrate", "demo", "--images", 64,
        "--data", "demo", "--limit", 200,
    )  # fmt: skip
    assert found["bytes"] < 0.5 * found["float_bytes"]
    assert found["agreement"] > 0.8
    assert found["held_out"] is True
    assert found["accuracy"]["int8"] > found["accuracy"]["float"] - 0.05
    assert set(found["milliseconds"]) == {"float", "int8"}


def test_where_time_was_measured_is_said(tmp_path):
    text = run("prune", DEMO, "--latency", "0.8", "--threads", 1, "--batch", 2, "-o", tmp_path / "fast")
    assert "pytorch, batch 2, 1 thread" in " ".join(text.split())
    assert "measured time" in text
