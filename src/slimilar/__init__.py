"""Make a trained CNN smaller and faster by removing channels that the remaining channels can replace."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slimilar._version import __version__ as __version__
from slimilar.errors import SlimilarError

if TYPE_CHECKING:
    from slimilar.calibration.batch_norm_statistics import recalibrate
    from slimilar.deploy.onnx_files import load_onnx
    from slimilar.deploy.runtimes import Runtime
    from slimilar.deploy.store import load, save
    from slimilar.pipeline import analyze, apply, prune, remove_channels
    from slimilar.planning.cost import Cost, count
    from slimilar.planning.cut import Cut
    from slimilar.planning.plan import Plan
    from slimilar.planning.target import PruningTarget
    from slimilar.result import Result

__all__ = [
    "Cost",
    "Cut",
    "Plan",
    "PruningTarget",
    "Result",
    "Runtime",
    "SlimilarError",
    "analyze",
    "apply",
    "count",
    "load",
    "load_onnx",
    "prune",
    "recalibrate",
    "remove_channels",
    "save",
]

# Imported when first asked for: torch takes seconds, and `slimilar --help` does without it.
_HOMES = {
    "Cost": "planning.cost",
    "Cut": "planning.cut",
    "Plan": "planning.plan",
    "PruningTarget": "planning.target",
    "Result": "result",
    "Runtime": "deploy.runtimes",
    "analyze": "pipeline",
    "apply": "pipeline",
    "count": "planning.cost",
    "load": "deploy.store",
    "load_onnx": "deploy.onnx_files",
    "prune": "pipeline",
    "recalibrate": "calibration.batch_norm_statistics",
    "remove_channels": "pipeline",
    "save": "deploy.store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
