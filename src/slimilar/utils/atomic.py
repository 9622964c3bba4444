"""Files that are always whole: a new one takes the old one's place in a single step, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the name of an unfinished file: it takes the place of `path` if all goes well, and vanishes if not.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "greeting.txt") as unfinished:
    ...     _ = unfinished.write_text("hello")
    >>> [file.name for file in folder.iterdir()]
    ['greeting.txt']
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        _settle(unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _settle(file: Path) -> None:
    """Bring the content to the disk before a name points to it, and let others read it as usual."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())
    umask = os.umask(0)
    os.umask(umask)
    file.chmod(0o666 & ~umask)  # mkstemp lets nobody else read


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text as a whole or not at all, and return where."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)
