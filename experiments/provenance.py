"""What stands above every result of an experiment: command, seed, versions, hardware, commit, time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from slimilar.utils import provenance
from slimilar.utils.row_ledger import RowLedger

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", ":(glob)experiments/*.py")


def work_folder() -> Path:
    """Return where checkpoints and shared work are: the folder that SLIMILAR_RUNS names, or `runs`."""
    return Path(os.environ.get("SLIMILAR_RUNS", "runs")).expanduser()


def commit(root: Path = ROOT) -> str | None:
    """Return the last commit of the code that is running, not of its results."""
    return provenance.commit(root, CODE)


def header(command: str, seed: int) -> dict[str, Any]:
    """Return the header of an experiment."""
    return provenance.header(command, seed, commit())


def opened(path: Path, about: dict[str, Any]) -> RowLedger:
    """Return the rows of an experiment. They may be of several runs: each says by which commit it was made."""
    return RowLedger(path, about, stamp={"commit": about["commit"]}, notify=_show)


def _show(row: dict[str, Any]) -> None:
    short = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
    print(short, file=sys.stderr, flush=True)
