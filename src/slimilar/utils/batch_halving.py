"""Batches that become smaller where they do not fit into a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from warnings import warn

import torch

from slimilar.errors import SlimilarWarning
from slimilar.utils.allocator import freed_memory_kept
from slimilar.utils.devices import empty_cache

Made = TypeVar("Made")


def halving(size: int, work: Callable[[int], Made], device: torch.device) -> Made:
    """Return what `work` makes with batches of a size, halved as often as memory runs out.

    >>> def work(size):
    ...     if size > 4:
    ...         raise torch.OutOfMemoryError
    ...     return size
    >>> import warnings; warnings.simplefilter("ignore")
    >>> halving(16, work, torch.device("cpu"))
    4
    """
    while True:
        try:
            with freed_memory_kept():
                return work(size)
        except torch.OutOfMemoryError:
            if size <= 1:
                raise
        # outside the handler, so that nothing holds on to what did not fit
        warn(
            f"batches of {size} images do not fit into the memory of {device}: halved",
            SlimilarWarning,
            stacklevel=3,
        )
        size //= 2
        empty_cache(device)
