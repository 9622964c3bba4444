"""Which architectures are tried, and which are left out, by a stated rule.

Everything of torchvision (classification, segmentation, video, optical flow, detection: the backbone) and of timm, and
some detectors of ultralytics. All are built without memory. Those without batch norm come last. Of timm
architectures that are made of the same modules (class names along each module's path, its own name without digits)
in other numbers and widths, only the one with the fewest parameters is tried; `--all` tries every one.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimilar.utils.atomic import write_text
from slimilar.utils.torchvision_compat import import_torchvision

_KINDS = ("", "segmentation", "video", "optical_flow", "detection")
_DETECTORS = (
    "yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-ghost", "yolov9t", "yolov10n", "yolo11n", "yolo12n",
    "yolo26n", "yolo11n-seg", "yolo11n-pose", "yolo11n-obb", "yolo11n-cls", "rtdetr-resnet50",
)  # fmt: skip
_HEADS = {
    "seg": "SegmentationModel", "pose": "PoseModel", "obb": "OBBModel", "cls": "ClassificationModel",
    "resnet50": "RTDETRDetectionModel",
}  # fmt: skip
EXPORT_EVERY = 8  # exporting and compiling take long: a sample


@dataclass(frozen=True)
class Architecture:
    """One architecture."""

    library: str
    name: str
    kind: str
    batch_norms: int
    params: int
    made_of: str  # a digest of the modules it is made of
    sizes: tuple[int, ...]  # image sizes to try, the small ones first

    @property
    def key(self) -> str:
        """Return a name that is the only one of its kind."""
        return f"{self.library}/{self.name}"


def build(library: str, name: str, kind: str, size: int | None = None) -> nn.Module:
    """Return a model with random weights; one of timm's for images of a size, if it is given."""
    models = import_torchvision("torchvision.models")
    if library == "timm":
        import timm

        return timm.create_model(name) if size is None else timm.create_model(name, img_size=size)
    if library == "ultralytics":
        from ultralytics.nn import tasks

        made: nn.Module = getattr(tasks, _HEADS.get(name.partition("-")[2], "DetectionModel"))(
            f"{name}.yaml", verbose=False
        )
        return made
    found: nn.Module = models.get_model(name, weights=None, **_without_weights(name, kind))
    return found.get_submodule("backbone") if kind == "detection" else found


def _without_weights(name: str, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {"weights_backbone": None} if kind in ("segmentation", "detection") else {}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": False}
    return options


def made_of(model: nn.Module) -> str:
    """Return a digest of the kinds of modules in a model, whatever their number and width."""
    modules = dict(model.named_modules())
    found = set()
    for path in modules:
        parts = path.split(".")
        around = [
            type(modules[".".join(parts[:i])]).__name__ for i in range(max(0, len(parts) - 2), len(parts) + 1)
        ]
        found.add(".".join([*around, re.sub(r"\d+", "", parts[-1])]))
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:12]


def names() -> Iterator[tuple[str, str, str]]:
    """Yield library, name and kind of everything there is."""
    models = import_torchvision("torchvision.models")
    for kind in _KINDS:
        module = import_torchvision(f"torchvision.models.{kind}") if kind else models
        for name in models.list_models(module=module):
            yield "torchvision", name, kind
    import timm

    for name in timm.list_models():
        yield "timm", name, ""
    for name in _DETECTORS:
        yield "ultralytics", name, ""


def catalogue(path: Path) -> list[Architecture]:
    """Return all architectures; what was found once is kept in a file."""
    if path.exists():
        return [Architecture(**{**row, "sizes": tuple(row["sizes"])}) for row in json.loads(path.read_text())]
    warnings.simplefilter("ignore")
    found = [describe(*name) for name in names()]
    write_text(path, "[\n" + ",\n".join(json.dumps(asdict(e)) for e in found) + "\n]\n")
    return found


def describe(library: str, name: str, kind: str) -> Architecture:
    """Look at one architecture without giving it memory."""
    try:
        with torch.device("meta"):
            model = build(library, name, kind)
    except Exception:  # some compute with their weights while they are built
        model = build(library, name, kind)
    norms = sum(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())
    params = sum(p.numel() for p in model.parameters())
    return Architecture(library, name, kind, norms, params, made_of(model), _sizes(model, kind))


def _sizes(model: nn.Module, kind: str) -> tuple[int, ...]:
    config: dict[str, Any] = getattr(model, "default_cfg", None) or {}
    own = 320 if kind == "detection" else config.get("input_size", (3, 224, 224))[-1]
    if config.get("fixed_input_size"):
        return (own,)
    small = (64, 112) if kind == "video" else (128,) if kind == "optical_flow" else (96, 112, 128)
    return (*small, own)


def chosen(entries: list[Architecture], everything: bool) -> list[Architecture]:
    """Return what is tried, small ones first; then the near-duplicates of torchvision, and detectors."""
    found: dict[str, Architecture] = {}
    ordered = sorted((e for e in entries if e.batch_norms), key=lambda e: (e.params, e.key))
    detectors = [e for e in ordered if e.library == "ultralytics"]
    ordered = [e for e in ordered if e.library != "ultralytics"]
    for e in ordered:
        found.setdefault(e.library + e.made_of, e)
    first = set(found.values())
    rest = [e for e in ordered if e not in first and (everything or e.library == "torchvision")]
    return [*found.values(), *rest, *detectors]


def without_norms(entries: list[Architecture]) -> list[Architecture]:
    """Return architectures without batch norm (transformers, mostly), one of each kind, small ones first."""
    found: dict[str, Architecture] = {}
    for e in sorted((e for e in entries if not e.batch_norms), key=lambda e: (e.params, e.key)):
        found.setdefault(e.library + e.made_of, e)
    return list(found.values())
