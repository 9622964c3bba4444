"""Rows of results in a file of JSON lines: appended as soon as they are known, never computed twice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from slimilar.errors import StoreError
from slimilar.utils.atomic import write_text

Row = dict[str, Any]
_HEADER = "header"


class RowLedger:
    """A file with one JSON object a line. The first line may be a header, ``{"header": {...}}``.

    A process may be killed at any moment and several may append at once: a line that was cut short is ignored by
    readers and removed by the next writer. `stamp` is added to every new row, for instance the commit that made it.
    An existing file must agree with `header` in the values named by `fixed`. `notify` is called with every new row.

    >>> import tempfile
    >>> ledger = RowLedger(Path(tempfile.mkdtemp()) / "rows.jsonl")
    >>> ledger.row({"network": "a"}, lambda: {"accuracy": 0.5})["accuracy"]
    0.5
    >>> ledger.row({"network": "a"}, lambda: {"accuracy": 0.9})["accuracy"]  # known already
    0.5
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any] | None = None,
        *,
        stamp: Mapping[str, Any] | None = None,
        fixed: Sequence[str] = ("settings", "seed"),
        notify: Callable[[Row], None] | None = None,
    ) -> None:
        self.path, self.stamp, self.notify = path, _plain(stamp or {}), notify
        wanted, (held, self.rows) = _plain(header or {}), _read(path)
        if wanted and held:
            _compare(path, held, wanted, fixed)
        self.header = held or wanted
        self._cpu = time.process_time()

    def all(self, **values: Any) -> list[Row]:
        """Return the rows with these values."""
        return [row for row in self.rows if all(row.get(name) == v for name, v in values.items())]

    def find(self, **values: Any) -> Row | None:
        """Return the newest row with these values."""
        return next(iter(reversed(self.all(**values))), None)

    def row(self, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> Row:
        """Return the row of a key: the known one, or a new one, which is written at once.

        A new row says how long it took: `seconds` by the clock, unless it brings its own, and `cpu`, the
        processor time since the row before.
        """
        known = self.find(**_plain(key))
        if known is not None:
            return known
        began = time.perf_counter()
        values = compute()
        cpu, self._cpu = time.process_time() - self._cpu, time.process_time()
        took = {"seconds": round(time.perf_counter() - began, 2), "cpu": round(cpu, 2)}
        return self.append({**key, **took, **values})

    def append(self, row: Mapping[str, Any]) -> Row:
        """Append a row with the stamp; it is on the disk when this returns."""
        added = _plain({**row, **self.stamp})
        if self.header and not self.path.exists():
            write_text(self.path, _line({_HEADER: self.header}))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file, _locked(file):
                _remove_cut_line(file)
                file.write(_line(added).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.path} could not be written: {error}; run the command again to resume"
            ) from error
        self.rows.append(added)
        if self.notify is not None:
            self.notify(added)
        return added


def _plain(data: Mapping[str, Any]) -> Row:
    """Return what a reader of the file will get."""
    found: Row = json.loads(json.dumps(data))
    return found


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data) + "\n"


def _read(path: Path) -> tuple[Row, list[Row]]:
    content = path.read_bytes() if path.exists() else b""
    try:
        lines = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise StoreError(
            f"{path} must hold one row per line, but: {error}; restore it or delete it"
        ) from error
    if not all(isinstance(line, dict) for line in lines):
        raise StoreError(f"{path} must hold one JSON object per line; restore it or delete it")
    headed = bool(lines) and set(lines[0]) == {_HEADER}
    return (lines[0][_HEADER], lines[1:]) if headed else ({}, lines)


def _remove_cut_line(file: IO[bytes]) -> None:
    """Remove the part of a line that a killed process left at the end of a file."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not POSIX: only one process may append there
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
    yield


def contains(held: Any, wanted: Any) -> bool:
    """Tell whether settings hold all that is wanted. They may hold more, on which rows no longer depend.

    What is off (None, False) need not be held: it may not have existed when the rows were made.

    >>> contains({"scale": {"test": 100, "size": 3}}, {"scale": {"test": 100, "clip": None}})
    True
    >>> contains({"lr": 0.2}, {"lr": 0.1}), contains({"clip": 1.0}, {"clip": None})
    (False, False)
    """
    if wanted is None or wanted is False:
        return held is None or held is False
    if isinstance(wanted, Mapping) and isinstance(held, Mapping):
        return all(contains(held.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(held, list | tuple):
        return len(wanted) == len(held) and all(map(contains, held, wanted))
    return bool(wanted == held)


def _compare(path: Path, held: Row, wanted: Row, fixed: Sequence[str]) -> None:
    for name in fixed:
        if not contains(held.get(name), wanted.get(name)):
            raise StoreError(
                f"{path} must have been made with the same {name}, but was made with another; "
                "delete it to start again, or write into another folder"
            )
