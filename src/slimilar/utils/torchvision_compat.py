"""The one place that imports torchvision.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its compiled part cannot be loaded, and its
Python part then stops at ``operator torchvision::nms does not exist``, although models and datasets need no
compiled operator at all. Declaring the two operators it looks up is enough. timm imports torchvision, so use
``import_timm()``. ultralytics does too: call ``import_torchvision()`` before it; its detectors choose boxes by a
``nms`` in PyTorch then.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch
from torch import Tensor

from slimilar.errors import InvalidInput

_MISSING = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_lock = threading.Lock()
_declared: list[torch.library.Library] = []  # a declaration lives as long as its Library object


def import_torchvision(module: str = "torchvision") -> Any:
    """Import and return ``module`` of torchvision; may be called any number of times, from any thread.

    >>> import_torchvision("torchvision.models").resnet18().fc.out_features
    1000
    """
    with _lock:
        try:
            return importlib.import_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            _declare_missing_operators()
            ops: Any = importlib.import_module("torchvision.ops")
            ops.nms = ops.boxes.nms = greedy_nms
        except ModuleNotFoundError as error:
            raise InvalidInput(f"{module} is not installed; run: pip install 'slimilar[vision]'") from error
        return importlib.import_module(module)


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _MISSING.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)


def greedy_nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes to keep, the best first: as ``torchvision.ops.nms``, without compiled operators.

    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10], [20, 20, 30, 30]])
    >>> greedy_nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5)
    tensor([1, 2])
    """
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while len(left):
        kept.append(left[:1])
        left = left[1:][_overlap(boxes[left[:1]], boxes[left[1:]]) <= iou_threshold]
    return torch.cat(kept) if kept else left


def _overlap(one: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of one box with others."""
    sides = (torch.minimum(one[:, 2:], others[:, 2:]) - torch.maximum(one[:, :2], others[:, :2])).clamp(min=0)
    shared = sides.prod(1)
    area, areas = ((b[:, 2:] - b[:, :2]).prod(1) for b in (one, others))
    return shared / (area + areas - shared)


def import_timm() -> Any:
    """Import and return timm, which imports torchvision."""
    import_torchvision()
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise InvalidInput("timm is not installed; run: pip install 'slimilar[vision]'") from error
