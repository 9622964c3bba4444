"""Checks of numbers that users pass."""

from __future__ import annotations

from numbers import Real
from typing import Any

from slimilar.errors import InvalidInput, Option


def check_share(value: Any, option: str = "threshold") -> float:
    """Return a number from 0 to 1, or raise.

    >>> check_share(1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise InvalidInput(Option(option), f" must be a number from 0 to 1, got {value!r}")
    return float(value)


def check_positive_integer(value: Any, option: str) -> int:
    """Return a whole number of at least 1, or raise.

    >>> check_positive_integer(8, "round_to")
    8
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(Option(option), f" must be a whole number of at least 1, got {value!r}")
    return value


def check_natural_number(value: Any, option: str) -> int:
    """Return a whole number of at least 0, or raise.

    >>> check_natural_number(0, "min_channels")
    0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(Option(option), f" must be a whole number of at least 0, got {value!r}")
    return value
