"""The folder of a comparison: its terms, its rows, and the files of work under way. Whole at any moment.

comparison.json   the terms, the versions, the command; written once
rows.jsonl        one row a line, appended as soon as it is known; a torn last line is forgotten
start.json        the network that everybody starts from
phases/ choices/  what rows share: trainings before pruning, and who leaves in which order
runs/             fine-tunings under way
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch

from slimilar._version import __version__
from slimilar.comparison.rows import Baseline, Comparison, Row
from slimilar.errors import InvalidInput, StoreError
from slimilar.utils.atomic import write_text

HEADER, ROWS, START = "comparison.json", "rows.jsonl", "start.json"


@contextmanager
def opened(folder: Path, fixed: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[dict[str, Row]]:
    """Hold a folder for one call alone, check that its terms are these, and yield the rows it has."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        path = folder / HEADER
        header = read_json(path) if path.exists() else {"made by": _versions(), "terms": dict(fixed)}
        _check(folder, header["terms"], fixed)
        now = {**header, **about}  # the command is the last one, which may have added rows
        if not path.exists() or now != header:
            write_text(path, json.dumps(now, indent=1) + "\n")
        yield _mended(folder / ROWS)


def _versions() -> dict[str, str]:
    used = {"slimilar": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {**used, "python": platform.python_version()}


def _check(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise InvalidInput(
                f"{name} must be {before.get(name)!r} as in the comparison in {folder}, got {now.get(name)!r}; "
                "ask for the same, or begin another comparison in another folder"
            )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second call out of the folder; the lock goes with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two calls at once are on their own there
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(
                f"{folder} is in use by another comparison; wait for it, or choose another folder"
            ) from error
        yield


def append(folder: Path, row: Row) -> None:
    """Write a row: whole on the disk when this returns."""
    line = json.dumps(dataclasses.asdict(row)) + "\n"
    try:
        with open(folder / ROWS, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{folder / ROWS} could not be written: {error}; call again to go on") from error


def _mended(path: Path) -> dict[str, Row]:
    """Return the rows of a file by key; a last line that a killed process left torn is taken out of it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_text(path, whole.decode())
    return _parsed(path, whole)


def _parsed(path: Path, content: bytes) -> dict[str, Row]:
    """Return rows by key; of several for one key, as after an error that was mended, the last counts."""
    try:
        rows = [Row(**json.loads(line)) for line in content.splitlines()]
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} must hold one row a line, but: {error}; restore it or delete it") from error
    return {row.key: row for row in rows}


def load(folder: str | Path) -> Comparison:
    """Return what is known in a folder, also while a comparison is under way."""
    place = Path(folder).expanduser()
    if not (place / HEADER).exists():
        raise StoreError(f"{place} must be the folder of a comparison, but has no {HEADER}; check the path")
    content = (place / ROWS).read_bytes() if (place / ROWS).exists() else b""
    rows = _parsed(place / ROWS, content[: content.rfind(b"\n") + 1])
    baseline = Baseline(**read_json(place / START)) if (place / START).exists() else None
    return Comparison(baseline, tuple(rows.values()), read_json(place / HEADER))


def read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a comparison holds."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} must be a whole JSON file, but: {error}; delete it and call again"
        ) from error
    return found


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file of a comparison, whole or not at all."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    write_text(path, json.dumps(data) + "\n")
