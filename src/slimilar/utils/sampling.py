"""Some of many images: taken evenly, because datasets are often sorted by class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of the numbers below `count`, in order and equally far apart; the first and last too.

    >>> evenly(10, 4).tolist(), evenly(3, 8).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)


def taken_evenly(array: NDArray[Any], most: int) -> NDArray[Any]:
    """Return at most so many entries of an array."""
    return np.ascontiguousarray(array[evenly(len(array), most)])
