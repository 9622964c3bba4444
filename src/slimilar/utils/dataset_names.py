"""The names of datasets; apart from `slimilar.data`, which imports torch."""

from __future__ import annotations

from pathlib import Path

from slimilar.errors import DataError

CIFAR = ("cifar10", "cifar100")
NAMES = ("demo", *CIFAR)


def check_dataset(what: str | Path) -> Path | None:
    """Return the path that names a dataset, None for one with a name of its own; raise if it is neither.

    >>> check_dataset("demo") is None, check_dataset("mine.npz").name
    (True, 'mine.npz')
    """
    path, name = Path(what).expanduser(), str(what)
    if name in NAMES:
        return None
    if path.suffix == ".npz" or path.is_dir():
        return path
    why = "which is neither a folder nor a .npz file" if path.exists() else "but there is no such folder"
    raise DataError(
        f"data must be {', '.join(map(repr, NAMES))}, a .npz file or a folder, got {name!r}, {why}"
    )
