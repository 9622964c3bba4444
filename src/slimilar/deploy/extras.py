"""Libraries that are extras: imported when asked for, with a sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from slimilar.errors import InvalidInput


def require(name: str, extra: str = "onnx") -> Any:
    """Import a library that is an extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"{name} is not installed; run: pip install 'slimilar[{extra}]'") from error
