"""Optional libraries: imported when needed, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any

from slimilar.errors import InvalidInput


def require(name: str, extra: str = "onnx") -> Any:
    """Import an optional library, or raise with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"{name} is not installed; run: pip install 'slimilar[{extra}]'") from error
