"""One network through ONNX and back: exported, read, pruned, written, and run."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

import slimilar
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import NothingToPrune, SlimilarError
from slimilar.utils.torchvision_compat import import_torchvision

PRUNED = "pruned"


def names() -> list[str]:
    """Return torchvision's classifiers, in the order of their parameters as published."""
    models = import_torchvision("torchvision.models")
    sizes = {
        name: next(iter(models.get_model_weights(name))).meta["num_params"]
        for name in models.list_models(module=models)
    }
    return sorted(sizes, key=lambda name: (sizes[name], name))


def network(name: str) -> tuple[nn.Module, Tensor]:
    """Return a classifier of torchvision with random weights, and an input of its size."""
    models = import_torchvision("torchvision.models")
    quiet = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(0)
    model = models.get_model(name, weights=None, **quiet).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)  # the head of a transformer: no answer to compare
    return model, torch.zeros(1, 3, *(2 * [299 if name == "inception_v3" else 224]))


def round_trip(model: nn.Module, example: Tensor, folder: Path, *, dynamic_batch: bool = True) -> str:
    """Return what became of a network: "pruned", or where it stopped and why."""
    try:
        file = export_onnx(model, folder / "whole.onnx", example, dynamic_batch=dynamic_batch).path
    except SlimilarError as error:
        return f"not exported: {error}"
    try:
        read = slimilar.load_onnx(file)
    except SlimilarError as error:
        return f"not read: {error}"
    try:
        small = slimilar.prune(
            read, read.example, flops=0.8, criterion="magnitude-l1", reconstruction="none"
        ).model
    except NothingToPrune:
        return "nothing to prune"
    except SlimilarError as error:
        return f"refused: {error}"
    try:
        written = export_onnx(small, folder / "small.onnx", read.example)
    except SlimilarError as error:
        return f"not written: {error}"
    images = torch.randn(
        2 if dynamic_batch else 1, *example.shape[1:], generator=torch.Generator().manual_seed(0)
    )
    session = onnxruntime.InferenceSession(written.path.read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": images.numpy()})
    with torch.no_grad():
        wanted = small(images).numpy()
    gap = float(abs(found - wanted).max() / abs(wanted).max())
    return PRUNED if gap < 1e-3 else f"differs: {gap:.2g} of the largest score"
