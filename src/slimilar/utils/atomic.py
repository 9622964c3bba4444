"""Atomic file writes: a file holds its old content or its new content, never a part of either."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str], *, single_writer: bool = False) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` on success and is deleted on failure.

    With `single_writer` the temporary file always has the same name: the next write overwrites what a killed
    process left, and no leftovers pile up. It is safe only where no other process writes the same file.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "greeting.txt") as temporary:
    ...     _ = temporary.write_text("hello")
    >>> [file.name for file in folder.iterdir()]
    ['greeting.txt']
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _fixed_name(target) if single_writer else _unique_name(target)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        _sync_folder(target.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fixed_name(target: Path) -> Path:
    return target.with_name(f".{target.stem}.unfinished{target.suffix}")


def _unique_name(target: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    os.close(handle)
    umask = os.umask(0)
    os.umask(umask)
    temporary = Path(name)
    temporary.chmod(0o666 & ~umask)  # mkstemp denies access to everyone else
    return temporary


def _sync(file: Path) -> None:
    """Bring the content to the disk before the final name points to it."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the rename is durable by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file atomically and return its path."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes, *, single_writer: bool = False) -> Path:
    """Write a file atomically and return its path."""
    with replacing(path, single_writer=single_writer) as temporary:
        temporary.write_bytes(content)
    return Path(path)
