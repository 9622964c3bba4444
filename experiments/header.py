"""What stands above every result: command, seed, versions, hardware, time."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import scipy
import torch

import slimilar

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", ":(glob)experiments/*.py")


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    return {
        "slimilar": slimilar.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def commit(root: Path = ROOT) -> str | None:
    """Return the last commit of the code that is running, not of results; None outside of a repository.

    `+ changes` behind it says that files were changed and not committed.
    """
    last, changed = (
        _git(root, *words, "--", *CODE) for words in (("log", "-1", "--format=%h"), ("status", "-s"))
    )
    return f"{last} + changes" if last and changed else last or None


def _git(root: Path, *words: str) -> str:
    try:
        asked = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return asked.stdout.strip()


def hardware() -> str:
    """Return what the numbers were made on; times are those of a machine that may have been shared."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    threads = torch.get_num_threads()
    return f"{os.cpu_count()} cores of {platform.machine()}, {threads} of PyTorch's threads; {accelerator}"


def now() -> str:
    """Return the time in UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
