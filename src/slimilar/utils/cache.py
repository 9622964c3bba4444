"""Where measurements of this machine are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for what can be measured again: `SLIMILAR_CACHE`, or slimilar's in the user's cache folder."""
    if given := os.environ.get("SLIMILAR_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA", "~\\AppData\\Local")
    elif sys.platform == "darwin":
        home = "~/Library/Caches"
    else:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "slimilar"
