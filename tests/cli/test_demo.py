"""The demo: offline, from the package alone."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import slimilar
from slimilar.cli import app, demo
from slimilar.data import demo_images


@pytest.fixture
def offline(monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the demo must not use the network")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)


@pytest.fixture
def brief(monkeypatch) -> None:
    """One setting, few images (as many as span wants, see benchmarks/few_images.py): the same steps in seconds."""
    monkeypatch.setattr(demo, "SHARES", (0.5,))
    sizes = {"test": 100, "train": 32}
    monkeypatch.setattr("slimilar.data.demo_images", lambda split: demo_images(split).first(sizes[split]))


@pytest.mark.usefixtures("offline", "brief")
def test_the_demo_shows_what_each_way_keeps(tmp_path):
    folder = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--seconds", "0.2"])
    assert result.exit_code == 0, result.output
    text = result.output
    measured = [float(x) for x in re.findall(r"(\d+\.\d) %\s+█", text)]
    assert len(measured) == 5
    before, plain, data_free, least_squares, span = measured
    assert before > 50
    assert span > before - 20, "unlabelled images keep most of what it knows at half the FLOPs"
    assert min(span, least_squares) > data_free > plain + 20, "so much without any data"
    assert re.search(r"4[1-4]\.\d\d M +-5\d\.\d %", text), "half of the FLOPs"
    page = (folder / "report.html").read_text()
    assert "Slimilar demo" in page
    assert demo.HOW[demo.SPAN] in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    small = slimilar.load(folder / "model.safetensors")
    assert sum(p.numel() for p in small.parameters()) < 1_200_000


@pytest.mark.usefixtures("offline", "brief")
def test_the_demo_for_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "CHOSEN_BY", "similarity")  # quicker, and as good for a look at the form
    result = CliRunner().invoke(app, ["demo", "-o", str(tmp_path), "--seconds", "0", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == [
        "images", "accuracy", "flops", "params", "settings", "milliseconds", "ratios", "batch", "files",
    ]  # fmt: skip
    assert [row["how"] for row in found["settings"]] == list(demo.HOW)
    assert all(row["flops"] <= 0.5 * found["flops"] for row in found["settings"])
    assert all(Path(file).is_file() for file in found["files"].values())


@pytest.mark.slow
def test_the_whole_demo(tmp_path):
    command = [sys.executable, "-m", "slimilar", "demo", "-o", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    found = json.loads(done.stdout)
    kept = {row["share"]: row["accuracy"] for row in found["settings"] if row["how"] == demo.SPAN}
    assert kept[0.5] > found["accuracy"] - 0.04
    assert kept[0.3] > found["accuracy"] - 0.10
