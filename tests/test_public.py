"""The public surface: its names, and that asking for help does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import slimilar

NAMES = [
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


def test_the_public_names():
    assert slimilar.__all__ == NAMES
    assert set(NAMES) <= set(dir(slimilar))
    for name in NAMES:
        assert getattr(slimilar, name).__doc__, name


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'shrink'"):
        slimilar.shrink  # noqa: B018


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_torch_is_imported_only_when_it_is_needed():
    assert run("import sys, slimilar; print('torch' in sys.modules, slimilar.__version__)").startswith(
        "False "
    )
