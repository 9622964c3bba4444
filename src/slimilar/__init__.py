"""Slim by similarity: make a pre-trained CNN smaller and faster by keeping one channel of every kind."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from slimilar._version import __version__ as __version__
from slimilar.errors import SlimilarError

if TYPE_CHECKING:
    from slimilar.cost import Cost, count
    from slimilar.plan import Cut, Plan
    from slimilar.prune import Result, analyze, prune, remove_channels
    from slimilar.recalibrate import recalibrate
    from slimilar.store import load, save

__all__ = [
    "Cost",
    "Cut",
    "Plan",
    "Result",
    "SlimilarError",
    "analyze",
    "count",
    "load",
    "prune",
    "recalibrate",
    "remove_channels",
    "save",
]

# Imported when first asked for: torch takes seconds, and `slimilar --help` does without it.
_HOMES = {
    "Cost": "cost",
    "Cut": "plan",
    "Plan": "plan",
    "Result": "prune",
    "analyze": "prune",
    "count": "cost",
    "load": "store",
    "prune": "prune",
    "recalibrate": "recalibrate",
    "remove_channels": "prune",
    "save": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    """Python would bind the module `slimilar.prune` over the function of that name; the function wins here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
