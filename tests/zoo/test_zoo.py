"""Every batch-norm network of torchvision and timm, detectors, exports (make test-zoo); no near-duplicates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from _zoo.catalogue import Entry, catalogue, chosen
from _zoo.worker import exported, ours

from _zoo_check import check
from slimilar._torchvision import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the models' own warnings
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ENTRIES = chosen(catalogue(RESULTS / "zoo-catalogue.json"), everything=False)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.key)
def test_every_architecture(entry: Entry):
    assert ours(entry)["status"] == "pass"


@pytest.mark.parametrize("entry", ENTRIES[::16], ids=lambda e: e.key)
def test_export_and_compile(entry: Entry):
    assert exported(entry)["status"] == "pass"


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_yolo(name):
    import_torchvision()
    ultralytics = pytest.importorskip("ultralytics.nn.tasks")
    model = ultralytics.DetectionModel(f"{name}.yaml", ch=3, nc=4, verbose=False)
    x = torch.randn(2, 3, 64, 64)
    small = check(model, x, train=False)
    small.train()(x)
    small.eval()(x)
