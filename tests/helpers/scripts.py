"""The programs in scripts/, as modules."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from helpers.paths import ROOT


def script(name: str) -> Any:
    """Return a program in scripts/ as a module."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    found = sys.modules[name] = importlib.util.module_from_spec(specification)  # where dataclasses look it up
    specification.loader.exec_module(found)
    return found
