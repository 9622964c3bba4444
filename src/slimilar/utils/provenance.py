"""Where a result comes from: versions, hardware, commit, time."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import scipy
import torch

from slimilar._version import __version__


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    return {
        "slimilar": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """Return the processor's name, or its architecture where the system does not tell the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def hardware() -> str:
    """Return processor, cores, threads and accelerator. Times also depend on what else the machine did."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    return f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} PyTorch threads, {accelerator}"


def commit(root: Path, paths: Sequence[str]) -> str | None:
    """Return the last commit of these paths in the repository at `root`; None outside a repository.

    ` + changes` is appended where tracked files among them differ from that commit.
    """
    last = _git(root, "log", "-1", "--format=%h", "--", *paths)
    changed = _git(root, "status", "--short", "--untracked-files=no", "--", *paths)
    return f"{last} + changes" if last and changed else last or None


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def now() -> str:
    """Return the time in UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def header(command: str, seed: int, made_by: str | None) -> dict[str, object]:
    """Return what belongs above every table of results; `made_by` is the commit of the code."""
    return {
        "command": command,
        "seed": seed,
        "versions": versions(),
        "commit": made_by,
        "hardware": hardware(),
        "started": now(),
    }
