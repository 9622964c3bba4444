"""The preprocessing that torchvision and timm publish with their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from slimilar.data.preprocessing import IMAGENET, Preprocessing, checked_normalisation
from slimilar.deploy.model_names import ModelSource
from slimilar.utils.torchvision_compat import import_torchvision


def published_preprocessing(
    source: ModelSource, model: nn.Module, size: tuple[int, int], weights: str | None = None
) -> Preprocessing | None:
    """Return how a library prepares images for its model, scaled to an input of `size`; None for other models."""
    if source.kind == "timm":
        return _timm(model, size)
    if source.kind == "torchvision":
        return _torchvision(source.name, size, weights)
    return None


def _timm(model: nn.Module, size: tuple[int, int]) -> Preprocessing:
    import_torchvision()
    from timm import data

    resolve: Any = data.resolve_model_data_config  # type: ignore[attr-defined]
    found: dict[str, Any] = resolve(model)
    normalisation = checked_normalisation(found["mean"], found["std"])
    resize: Any = int(min(size) / found["crop_pct"])
    if found.get("crop_mode") == "squash":
        resize = (int(size[0] / found["crop_pct"]), int(size[1] / found["crop_pct"]))
    return Preprocessing.of(
        size, resize, normalisation=normalisation, interpolation=found["interpolation"],
        grey=found["input_size"][0] == 1,
    )  # fmt: skip


def _torchvision(name: str, size: tuple[int, int], weights: str | None) -> Preprocessing:
    preset = _preset(name, weights)
    if not hasattr(
        preset, "crop_size"
    ):  # a detector: it scales and normalises by itself, or images differ in size
        return Preprocessing.of(size, normalisation=IMAGENET)
    resize = round(preset.resize_size[0] * min(size) / preset.crop_size[0])
    normalisation = checked_normalisation(preset.mean, preset.std)
    return Preprocessing.of(
        size, resize, normalisation=normalisation, interpolation=preset.interpolation.value
    )


def _preset(name: str, weights: str | None) -> Any:
    """Return the transforms of a model's published weights: those that the file's name belongs to, or the default."""
    known: Any = import_torchvision("torchvision.models").get_model_weights(name)
    file = Path(weights or "").name
    chosen = next((entry for entry in known if entry.url.endswith(f"/{file}") and file), None)
    return (chosen or known.DEFAULT).transforms()
