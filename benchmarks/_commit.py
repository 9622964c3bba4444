"""Which code made a row."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit(*measured: str) -> str:
    """Return the commit of the code that runs; "+" if the package, or a folder that measures it, differs from it."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        run = subprocess.run(("git", *words), cwd=here, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src/slimilar", *measured)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
