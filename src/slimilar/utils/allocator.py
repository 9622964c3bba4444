"""Keep memory that large tensors free, for work that allocates as much again and again."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Of mallopt(3): blocks from the one size on are mapped and unmapped each by itself; a free end of the heap beyond
# the other goes back to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP = 2**30  # bytes; within what mallopt takes, an int
_MIB = 2**20
# What glibc's own thresholds rise to once blocks of 32 MiB have been freed. They do not move once they were set.
_USUAL = {_MMAP_THRESHOLD: 32 * _MIB, _TRIM_THRESHOLD: 64 * _MIB}
_TUNED = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")  # the user has decided

_lock = threading.Lock()
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the C library keep what is freed inside, instead of giving it back and asking for it again.

    Otherwise every activation of more than 32 MiB costs a page fault for each of its pages, whenever it is allocated: a
    tenth of the processor time of a prune with images, a twentieth of a training (benchmarks/results/allocator.txt).
    Afterwards the memory is given back. Only glibc has these settings; elsewhere, and where the environment has set
    them, nothing happens.

    >>> with freed_memory_kept():
    ...     pass
    """
    if any(name in os.environ for name in _TUNED) or _glibc() is None:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


@cache
def _glibc() -> Any:
    """Return the C library where it is glibc, else None."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _enter() -> None:
    global _users  # the setting is the process's, so is the count
    with _lock:
        _users += 1
        if _users == 1:
            for parameter in _USUAL:
                _glibc().mallopt(parameter, _KEEP)


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for parameter, size in _USUAL.items():
                _glibc().mallopt(parameter, size)
            _glibc().malloc_trim(0)
