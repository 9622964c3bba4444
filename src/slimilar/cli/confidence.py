"""Confidence intervals of measured shares."""

from __future__ import annotations

import math


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> [round(x, 3) for x in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    z = 1.959964
    middle = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - reach) / (1 + z * z / count), (middle + reach) / (1 + z * z / count)
