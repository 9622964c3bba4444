"""Rows of one method that differ in their seed only, as one: means, and how far the seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from experiments.tables import percent

_MEANS = ("accuracy", "before", "prepared", "flops", "pruned")


def over_seeds(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each budget and substitute; `spread` is half the range of accuracies, None for one seed.

    >>> rows = [{"budget": "0.5", "substitute": "none", "error": None, "accuracy": a} for a in (90, 91)]
    >>> [(row["accuracy"], row["spread"], row["seeds"]) for row in over_seeds(rows)]
    [(90.5, 0.5, 2)]
    """
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row.get("budget"), row.get("substitute")), []).append(row)
    return [_merged(same) for same in found.values()]


def _merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of rows without an error; with errors alone, the first of them."""
    good = [row for row in rows if row["error"] is None]
    if not good:
        return {**rows[0], "seeds": 0, "spread": None}
    means = {name: _mean([row.get(name) for row in good]) for name in _MEANS}
    scores = [row["accuracy"] for row in good]
    spread = (max(scores) - min(scores)) / 2 if len(good) > 1 else None
    return {**good[0], **means, "spread": spread, "seeds": len(good)}


def _mean(values: list[Any]) -> float | None:
    return None if None in values else statistics.fmean(values)


def accuracy(row: dict[str, Any]) -> str | None:
    """Return an accuracy with its spread over the seeds, where there are several."""
    shown = percent(row["accuracy"])
    return (
        shown
        if row.get("spread") is None or shown is None
        else shown.replace(" %", f" ± {row['spread']:.2f} %")
    )
