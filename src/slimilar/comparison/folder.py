"""The folder of a comparison: its terms, its rows, and the files of work under way. Consistent at any moment.

comparison.json   the terms, the versions, the command; written once
rows.jsonl        one row a line, appended as soon as it is known
start.json        the network that all rows start from
phases/ choices/  what rows share: training before pruning, and removal orders
runs/             fine-tuning under way
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slimilar.comparison.rows import Baseline, Comparison, ComparisonRow
from slimilar.errors import InvalidInput, StoreError
from slimilar.utils.atomic import write_text
from slimilar.utils.provenance import versions
from slimilar.utils.row_ledger import RowLedger

HEADER, ROWS, START = "comparison.json", "rows.jsonl", "start.json"


@contextmanager
def opened(folder: Path, fixed: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[ComparisonRows]:
    """Lock a folder for one call, check that its terms are these, and yield its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        path = folder / HEADER
        header = read_json(path) if path.exists() else {"made by": versions(), "terms": dict(fixed)}
        _check(folder, header["terms"], fixed)
        now = {**header, **about}  # the last command, which may have added rows
        if not path.exists() or now != header:
            write_text(path, json.dumps(now, indent=1) + "\n")
        yield ComparisonRows(folder)


def _check(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise InvalidInput(
                f"{name} must be {before.get(name)!r} as in the comparison in {folder}, got {now.get(name)!r}; "
                "use the same value, or start another comparison in another folder"
            )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second call out of the folder; the lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # not POSIX: nothing keeps two calls apart there
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


class ComparisonRows:
    """The rows of a folder by key. Of several for one key, as after a repaired error, the last counts."""

    def __init__(self, folder: Path) -> None:
        self._ledger = RowLedger(folder / ROWS)
        try:
            rows = [ComparisonRow(**_tuples(row)) for row in self._ledger.rows]
        except TypeError as error:
            raise StoreError(
                f"{folder / ROWS} must hold rows of a comparison, but: {error}; restore it or delete it"
            ) from error
        self.by_key = {row.key: row for row in rows}

    def append(self, row: ComparisonRow) -> None:
        """Write a row, unless the last one of its key is the same, as when an error repeats."""
        if self.by_key.get(row.key) != row:
            self._ledger.append(dataclasses.asdict(row))
            self.by_key[row.key] = row


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def load(folder: str | Path) -> Comparison:
    """Return what is known in a folder, also while a comparison is under way."""
    place = Path(folder).expanduser()
    if not (place / HEADER).exists():
        raise StoreError(f"{place} must be the folder of a comparison, but has no {HEADER}; check the path")
    baseline = Baseline(**read_json(place / START)) if (place / START).exists() else None
    return Comparison(baseline, tuple(ComparisonRows(place).by_key.values()), read_json(place / HEADER))


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a comparison."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} must be a complete JSON file, but: {error}; delete it and call again"
        ) from error
    return found


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file of a comparison atomically."""
    write_text(path, json.dumps(data) + "\n")
