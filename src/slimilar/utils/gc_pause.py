"""Python's garbage collector, told to rest while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting() -> Iterator[None]:
    """Let the garbage collector rest: it would look at each new object again and again, and find nothing.

    What was made meanwhile is put beside the old objects (frozen and thawed again), which it looks at less often.

    >>> with resting():
    ...     gc.isenabled()
    False
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # nobody else has frozen anything
                gc.freeze()
                gc.unfreeze()
            gc.enable()
