"""Every batch-norm network of torchvision and timm, detectors, exports (make test-zoo); no near-duplicates."""

from __future__ import annotations

import pytest
import torch
from _zoo.catalogue import Architecture, catalogue, chosen
from _zoo.worker import exported, ours
from torch import nn

from helpers.paths import BENCHMARKS
from helpers.zoo_check import check
from slimilar.utils.pytree import tensors_in
from slimilar.utils.torchvision_compat import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the models' own warnings
RESULTS = BENCHMARKS / "results"
ENTRIES = chosen(catalogue(RESULTS / "zoo-catalogue.json"), everything=False)


def available(entry: Architecture) -> Architecture:
    """Skip detectors where their library is not installed."""
    import_torchvision()  # declares what the library's own import of torchvision needs
    if entry.library == "ultralytics":
        pytest.importorskip("ultralytics")
    return entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.key)
def test_every_architecture(entry: Architecture):
    assert ours(available(entry))["status"] == "pass"


@pytest.mark.parametrize("entry", ENTRIES[::16], ids=lambda e: e.key)
def test_export_and_compile(entry: Architecture):
    assert exported(available(entry))["status"] == "pass"


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n", "yolo26n"])
def test_backbone_and_neck_of_a_detector(name):
    """Channels leave in front of and behind splits, concatenations and upsampling; the head's outputs stay."""
    import_torchvision()
    tasks = pytest.importorskip("ultralytics.nn.tasks")
    model = tasks.DetectionModel(f"{name}.yaml", ch=3, nc=4, verbose=False)
    x = torch.randn(2, 3, 64, 64)
    small = check(model, x)
    neck = next(i for i, layer in enumerate(model.model) if isinstance(layer, nn.Upsample))
    for part in (slice(0, neck), slice(neck, -1)):  # the backbone; the neck, without the head
        before, after = (sum(p.numel() for p in net.model[part].parameters()) for net in (model, small))
        assert after < 0.9 * before
    for mode in (True, False):
        shapes = [[t.shape for t in tensors_in(net.train(mode)(x))] for net in (model, small)]
        assert shapes[0] == shapes[1]
