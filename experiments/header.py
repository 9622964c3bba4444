"""What stands above every result: command, seed, versions, hardware, time."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone

import numpy as np
import scipy
import torch

import slimilar


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    return {
        "slimilar": slimilar.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def hardware() -> str:
    """Return what the numbers were made on; times are those of a machine that may have been shared."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    threads = torch.get_num_threads()
    return f"{os.cpu_count()} cores of {platform.machine()}, {threads} of PyTorch's threads; {accelerator}"


def now() -> str:
    """Return the time in UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
