"""Torchvision's classifiers as ONNX: exported, read back, pruned, written, and run. All of them, in minutes."""

from __future__ import annotations

import pytest
import torch

import slimilar
from helpers.onnx_models import answers
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import NothingToPrune, SlimilarError
from slimilar.utils.torchvision_compat import import_torchvision

FAST = ["squeezenet1_1", "shufflenet_v2_x0_5"]


def round_trip(name: str, folder) -> str:
    """Return what became of a network: "pruned", or where it stopped."""
    models = import_torchvision("torchvision.models")
    quiet = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(0)
    model = models.get_model(name, weights=None, **quiet).eval()
    example = torch.zeros(1, 3, *(2 * [299 if name == "inception_v3" else 224]))
    try:
        file = export_onnx(model, folder / "whole.onnx", example).path
    except SlimilarError as error:
        return f"does not export: {error}"
    try:
        read = slimilar.load_onnx(file)
    except SlimilarError as error:
        return f"is not read: {error}"
    try:
        small = slimilar.prune(
            read, read.example, flops=0.8, criterion="magnitude-l1", reconstruction="none"
        ).model
    except NothingToPrune:
        return "has nothing to prune"
    written = export_onnx(small, folder / "small.onnx", read.example)
    images = torch.randn(2, *example.shape[1:], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(
            torch.from_numpy(answers(written.path, {"input": images.numpy()})[0]), small(images), atol=1e-3
        )
    return "pruned"


@pytest.mark.parametrize("name", FAST)
def test_a_sample(name, tmp_path):
    assert round_trip(name, tmp_path) == "pruned"


@pytest.mark.slow
def test_all_classifiers(tmp_path):
    models = import_torchvision("torchvision.models")
    found = {name: round_trip(name, tmp_path) for name in models.list_models(module=models)}
    exported = {name: what for name, what in found.items() if not what.startswith("does not export")}
    assert sum(what == "pruned" for what in exported.values()) >= 0.8 * len(exported), exported
    assert not [name for name, what in exported.items() if "ResNet" in name and what != "pruned"]
