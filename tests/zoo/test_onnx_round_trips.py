"""Small attention networks and a ConvNeXt as ONNX: exported, read back, pruned, written, and run.

`python benchmarks/onnx_round_trips.py` does it with all of torchvision's classifiers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _onnx.round_trip import PRUNED, round_trip
from torch import nn

from slimilar.utils.torchvision_compat import import_torchvision


def architecture(module: str, name: str) -> Any:
    return getattr(import_torchvision(f"torchvision.models.{module}"), name)


def convnext() -> nn.Module:
    stage = architecture("convnext", "CNBlockConfig")
    return architecture("convnext", "ConvNeXt")([stage(8, 16, 1), stage(16, None, 1)], num_classes=5)


def swin() -> nn.Module:
    made = architecture("swin_transformer", "SwinTransformer")
    return made([4, 4], 16, [2], [2], [4, 4], num_classes=5)


def maxvit() -> nn.Module:
    return architecture("maxvit", "MaxVit")((32, 32), 16, 4, [16], [1], 8, 0.0, num_classes=5)


def vit() -> nn.Module:
    return architecture("vision_transformer", "VisionTransformer")(32, 8, 2, 2, 16, 32, num_classes=5)


@pytest.mark.parametrize(
    ("build", "dynamic_batch"), [(convnext, True), (swin, True), (maxvit, False), (vit, False)]
)
def test_round_trip(build, dynamic_batch, tmp_path):
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)  # zeros and ones would hide a bias or a scale that is lost
    found = round_trip(model, torch.zeros(1, 3, 32, 32), tmp_path, dynamic_batch=dynamic_batch)
    assert found == PRUNED
