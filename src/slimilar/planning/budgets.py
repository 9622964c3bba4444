"""Budgets as users write them: shares, numbers, texts with units, times."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from slimilar.errors import InvalidInput, Option

Budget = float | int | str
CostKind = Literal["flops", "macs", "params"]

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "%": 0.01}
_COST = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgbt%]?)\s*")
_TIME = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(ms|s|%)?\s*")


def parse_budget(kind: str, budget: object, before: int) -> float:
    """Return a budget of a cost as a number, given the cost of the unpruned network.

    >>> parse_budget("flops", 0.5, 100), parse_budget("flops", "4.4G", 10**10), parse_budget("params", "25%", 200)
    (50.0, 4400000000.0, 50.0)
    """
    number, is_share = check_budget(kind, budget)
    return number * before if is_share else number


def check_budget(kind: str, budget: object) -> tuple[float, bool]:
    """Return the number that a budget names, and whether it is a share of the unpruned network's cost.

    >>> check_budget("flops", "50%"), check_budget("flops", 10**6)
    ((0.5, True), (1000000.0, False))
    """
    number, is_share = 0.0, False
    if isinstance(budget, str):
        if match := _COST.fullmatch(budget.lower()):
            number = float(match[1]) * _UNITS[match[2]]
            is_share = match[2] == "%" or (not match[2] and number <= 1)
    elif not isinstance(budget, bool) and isinstance(budget, Real):
        number, is_share = float(budget), float(budget) <= 1
    if not number > 0 or not math.isfinite(number):
        raise InvalidInput(
            Option(kind), f' must be a share such as 0.5, or a number such as "10M" or "4.4G", got {budget!r}'
        )
    return number, is_share


@dataclass(frozen=True)
class LatencyLimit:
    """A limit of measured time: in milliseconds, or as a share of the unpruned network's time."""

    milliseconds: float | None = None
    share: float | None = None


def check_latency(budget: object) -> LatencyLimit:
    """Return the limit that a budget of time names.

    >>> check_latency(0.5), check_latency("12ms")
    (LatencyLimit(milliseconds=None, share=0.5), LatencyLimit(milliseconds=12.0, share=None))
    """
    match = None if isinstance(budget, bool) else _TIME.fullmatch(str(budget))
    number = float(match[1]) if match else 0.0
    unit = match[2] if match else None
    if number <= 0 or (unit is None and number > 1):
        raise InvalidInput(
            Option("latency"),
            f' must be a share such as 0.5 or "50%", or a time such as "12ms", got {budget!r}',
        )
    if unit in ("ms", "s"):
        return LatencyLimit(milliseconds=number * (1000 if unit == "s" else 1))
    return LatencyLimit(share=number / 100 if unit == "%" else number)
