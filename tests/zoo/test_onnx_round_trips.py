"""Networks as ONNX: exported, read back, pruned, written, and run. `benchmarks/onnx_round_trips.py` does it with all
of torchvision's classifiers; here are the smallest of each kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from _onnx.round_trip import PRUNED, network, round_trip
from torch import Tensor, nn

from slimilar.utils.torchvision_compat import import_torchvision

IMAGE = torch.zeros(1, 3, 32, 32)


def architecture(module: str, name: str) -> Any:
    return getattr(import_torchvision(f"torchvision.models.{module}"), name)


def convnext() -> nn.Module:
    stage = architecture("convnext", "CNBlockConfig")
    return architecture("convnext", "ConvNeXt")([stage(8, 16, 1), stage(16, None, 1)], num_classes=5)


def swin(block: str) -> nn.Module:
    made = architecture("swin_transformer", "SwinTransformer")
    blocks = architecture("swin_transformer", block)
    return made([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5, block=blocks)


def maxvit() -> nn.Module:
    return architecture("maxvit", "MaxVit")((32, 32), 16, 4, [16], [1], 8, 0.0, num_classes=5)


def vit() -> nn.Module:
    return architecture("vision_transformer", "VisionTransformer")(32, 8, 2, 2, 16, 32, num_classes=5)


SMALL: dict[str, Callable[[], nn.Module]] = {
    "convnext": convnext,
    "swin": partial(swin, "SwinTransformerBlock"),
    "swin_v2": partial(swin, "SwinTransformerBlockV2"),
    "maxvit": maxvit,
    "vit": vit,
}


def from_torchvision(name: str) -> tuple[nn.Module, Tensor]:
    if name not in SMALL:
        return network(name)
    torch.manual_seed(0)
    model = SMALL[name]().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)  # zeros and ones would hide a bias or a scale that is lost
    return model, IMAGE


@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x0_5", *SMALL])
def test_round_trip(name, tmp_path):
    assert round_trip(*from_torchvision(name), tmp_path) == PRUNED
