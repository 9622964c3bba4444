"""What the report's page offers for copying, read back."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any


def command_options(command: str) -> dict[str, Any]:
    """Return the keyword arguments of `prune` behind a `slimilar prune` line."""
    words = shlex.split(command)
    assert words[:2] == ["slimilar", "prune"]
    options: dict[str, Any] = {"thresholds": {}}
    for word, value in pairwise(words):
        if word == "--threshold":
            options["threshold"] = float(value)
        elif word == "--round-to":
            options["round_to"] = int(value)
        elif word == "--layer":
            name, _, threshold = value.rpartition("=")
            options["thresholds"][name] = float(threshold)
    return options
