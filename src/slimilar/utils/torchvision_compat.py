"""The one place that imports torchvision.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its compiled part cannot be loaded, and its
Python part then stops at ``operator torchvision::nms does not exist``, although models and datasets need no
compiled operator at all. Declaring the two operators it looks up is enough. timm imports torchvision, so call
``import_torchvision()`` before ``import timm``.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

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
        except ModuleNotFoundError as error:
            raise InvalidInput(f"{module} is not installed; run: pip install 'slimilar[vision]'") from error
        return importlib.import_module(module)


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _MISSING.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)
