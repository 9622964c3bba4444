"""What all benchmarks share: where results go, and what stands above them or in each row."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from slimilar.utils import provenance
from slimilar.utils.row_ledger import RowLedger

RESULTS = Path(__file__).parent / "results"


def commit(*measured: str) -> str | None:
    """Return the last commit of the package and of the folders that measure it."""
    return provenance.commit(Path(__file__).parents[1], ("src/slimilar", *measured))


def stamp(*measured: str) -> dict[str, Any]:
    """Return what every row says about its making: versions, machine, commit."""
    used = provenance.versions()
    made_by = {"torch": used["torch"], "slimilar": used["slimilar"], "machine": platform.machine()}
    return {**made_by, "commit": commit(*measured)}


def opened(log: Path, *measured: str) -> RowLedger:
    """Return the rows of a benchmark; new ones are printed and say by which commit they were made."""
    return RowLedger(log, stamp=stamp(*measured), notify=lambda row: print(row, flush=True))


def print_header(command: str, seed: int) -> None:
    """Print what stands above a table of text."""
    print(header(command, seed))


def header(command: str, seed: int) -> str:
    """Return what stands above a table of text: command, seed, versions, hardware, commit."""
    # Results that were written meanwhile are no changes of what measures.
    code = commit("benchmarks", ":(exclude)benchmarks/results")
    made_by = provenance.header(command, seed, code)
    used = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"# command   {command}\n# seed      {seed}\n# versions  {used}\n"
        f"# hardware  {made_by['hardware']}{load}\n# commit    {made_by['commit']}, {made_by['started']}"
    )
