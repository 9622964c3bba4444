"""The examples run, each at a small scale, on images drawn here; what they save loads and computes."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import slimilar
from helpers.paths import ROOT
from slimilar.models import demo_network
from slimilar.utils.torchvision_compat import import_torchvision

EXAMPLES = ROOT / "examples"


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Smooth random images in two folders; the examples write into the folder they are started in."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for i in range(24):
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8))
        coarse.resize((72, 72), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return tmp_path / "photos"


def run(name: str, *arguments: object) -> None:
    runpy.run_path(str(EXAMPLES / name))["main"]([str(a) for a in arguments])


def test_every_example_is_short_and_documented():
    files = sorted(EXAMPLES.glob("*.py"))
    assert [f.stem for f in files] == ["classify", "denoise", "detect", "distributed", "segment"]
    for file in files:
        text = file.read_text()
        assert len(text.splitlines()) <= 85, f"{file.name} is too long for an example"
        assert f"examples/{file.name}" in text.split('"""')[1], f"{file.name} must say how it is run"


def test_denoise(photos, capsys):
    run("denoise.py", "--images", photos, "--depth", 4, "--steps", 2, "--flops", 0.6)
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["original", "pruned", "distilled"]
    fresh = runpy.run_path(str(EXAMPLES / "denoise.py"))["dncnn"](4)
    small = slimilar.load("denoiser-small.safetensors", fresh)
    assert small(torch.zeros(1, 1, 16, 16)).shape == (1, 1, 16, 16)
    assert small[0].out_channels < 64


def test_segment(photos, capsys, monkeypatch):
    """With a backbone of a quarter of the channels, which takes a quarter of the time."""
    networks = import_torchvision("torchvision.models.segmentation")
    narrow = functools.partial(networks.lraspp.mobilenet_v3_large, width_mult=0.25)
    monkeypatch.setattr(networks.lraspp, "mobilenet_v3_large", narrow)
    run("segment.py", "lraspp_mobilenet_v3_large", "--images", photos, "--size", 64, "--flops", 0.7)
    assert "pixels with the same class" in capsys.readouterr().out
    fresh = networks.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    small = slimilar.load("segmentation-small.safetensors", fresh)
    assert small(torch.zeros(1, 3, 64, 64))["out"].shape == (1, 21, 64, 64)


def test_classify(photos, capsys, monkeypatch):
    """The pruned network is kept unless a longer training is better on the images held out."""
    networks = import_torchvision("torchvision.models")
    narrow = functools.partial(networks.mobilenet_v3_small, width_mult=0.5)
    monkeypatch.setitem(networks._api.BUILTIN_MODELS, "mobilenet_v3_small", narrow)
    run("classify.py", "mobilenet_v3_small", "--images", photos, "--flops", 0.7, "--epochs", 1)
    said = capsys.readouterr().out
    assert "held-out images" in said
    fresh = narrow(num_classes=2)
    assert slimilar.load("classifier-small.safetensors", fresh)(torch.zeros(1, 3, 224, 224)).shape == (1, 2)


def test_distributed_in_two_processes(photos, tmp_path):
    """Started by accelerate's launcher; what it saves differs from what it pruned, and computes."""
    pytest.importorskip("accelerate")
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        EXAMPLES / "distributed.py", "--images", photos, "--epochs", "1", "--flops", "0.6",
    ]  # fmt: skip
    here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(slimilar.__file__).parents[1])}
    found = subprocess.run(
        [str(part) for part in command], cwd=tmp_path, env={**os.environ, **here},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("epoch 1: divergence") == 1
    small = slimilar.load(tmp_path / "distributed-small.safetensors", demo_network())
    assert small(torch.zeros(2, 3, 32, 32)).isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the library's own warnings
def test_detect(photos, tmp_path):
    """A network of ultralytics is pruned, trained by its trainer, saved, loaded and exported by itself."""
    import_torchvision()
    ultralytics = pytest.importorskip("ultralytics")
    from helpers.zoo_check import look_trained

    for part in ("train", "val"):
        (tmp_path / "images" / part).mkdir(parents=True)
        (tmp_path / "labels" / part).mkdir(parents=True)
        for file in sorted((photos / "a").iterdir())[:4]:
            Image.open(file).save(tmp_path / "images" / part / file.name)
            (tmp_path / "labels" / part / f"{file.stem}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (tmp_path / "data.yaml").write_text(
        f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: {{0: a}}\n"
    )
    yolo = ultralytics.YOLO("yolov8n.yaml")
    look_trained(yolo.model)
    yolo.save("full.pt")
    run("detect.py", "full.pt", "--photos", photos / "a", "--data", "data.yaml", "--epochs", 1, "--size", 64)
    small = ultralytics.YOLO("small.pt")
    wide, narrow = (sum(p.numel() for p in y.model.parameters()) for y in (yolo, small))
    assert narrow < 0.9 * wide
    assert (tmp_path / "small.onnx").exists()
    assert len(small.predict(tmp_path / "images" / "val", imgsz=64, verbose=False)) == 4
