"""Rows of an experiment, written as soon as they are known; what is there already is not computed again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slimilar.errors import StoreError
from slimilar.utils.atomic import write_text

Row = dict[str, Any]


class Ledger:
    """A JSON file with a header and rows, each found again by its key.

    Rows may be of several runs: each says by which commit of the code it was made.

    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "rows.json", {"settings": {}})
    >>> ledger.row({"network": "a"}, lambda: {"accuracy": 0.5})["accuracy"]
    0.5
    >>> ledger.row({"network": "a"}, lambda: {"accuracy": 0.9})["accuracy"]  # known already
    0.5
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.header = path, json.loads(json.dumps(header))
        self._commit = self.header.get("commit")
        self.rows: list[Row] = []
        if path.exists():
            held = _read(path)
            _compare(path, held["header"], self.header)
            self.header, self.rows = held["header"], held["rows"]
        self._before = float(self.header.get("processor_seconds", 0)) - time.process_time()

    def find(self, **key: Any) -> Row | None:
        """Return the row of a key."""
        return next((r for r in self.rows if all(r.get(k) == v for k, v in key.items())), None)

    def all(self, **key: Any) -> list[Row]:
        """Return every row that has these values."""
        return [r for r in self.rows if all(r.get(k) == v for k, v in key.items())]

    def row(self, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> Row:
        """Return the row of a key: the one that is known, or a new one, which is written at once."""
        key = json.loads(json.dumps(key))
        known = self.find(**key)
        if known is not None:
            return known
        start = time.perf_counter()
        values = compute()
        # A row that was made elsewhere brings its own time.
        took = values.get("seconds", round(time.perf_counter() - start, 2))
        row: Row = json.loads(json.dumps({**key, **values, "seconds": took, "commit": self._commit}))
        self.rows.append(row)
        self.header["commit"] = self._commit  # the last one; rows of earlier runs have their own
        # What others do on the machine does not count here; all runs that went on with the file do.
        self.header["processor_seconds"] = round(self._before + time.process_time(), 1)
        self.write()
        print({k: v for k, v in row.items() if not isinstance(v, list | dict)}, file=sys.stderr, flush=True)
        return row

    def write(self) -> None:
        """Write everything, whole or not at all; a row is a line."""
        self.header["seconds"] = round(sum(r["seconds"] for r in self.rows), 1)
        rows = ",\n".join(f"  {json.dumps(r)}" for r in self.rows)
        text = f'{{"header": {json.dumps(self.header, indent=1)},\n"rows": [\n{rows}\n]}}\n'
        write_text(self.path, text)


def _read(path: Path) -> Any:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return {"header": held["header"], "rows": held["rows"]}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} must hold the rows of an experiment, but does not ({error}); remove it"
        ) from None


def within(wanted: Any, held: Any) -> bool:
    """Tell whether all that is wanted is held; more may be held, on which rows no longer depend.

    What is off (None, False) need not be held: it may not have been known when rows were made.

    >>> within({"scale": {"test": 100, "clip": None}}, {"scale": {"test": 100, "size": 3}})
    True
    >>> within({"lr": 0.1}, {"lr": 0.2}), within({"clip": None}, {"clip": 1.0})
    (False, False)
    """
    if wanted is None or wanted is False:
        return held is None or held is False
    if isinstance(wanted, Mapping) and isinstance(held, Mapping):
        return all(within(value, held.get(name)) for name, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(held, list | tuple):
        return len(wanted) == len(held) and all(map(within, wanted, held))
    return bool(wanted == held)


def _compare(path: Path, held: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in ("settings", "seed"):
        if not within(wanted.get(name), held.get(name)):
            raise StoreError(
                f"{path} was made with another {name}; remove it to start anew, or choose another folder with --out"
            )
