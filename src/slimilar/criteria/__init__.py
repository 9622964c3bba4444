"""Criteria: in which order channels leave."""

from __future__ import annotations

from slimilar.criteria.base import Criterion, Sight, Weights
from slimilar.criteria.similarity import Similarity
from slimilar.criteria.span import Span
from slimilar.names import choose
from slimilar.similarity import Linkage

__all__ = ["Criterion", "Sight", "Similarity", "Span", "Weights", "available", "make"]


def available() -> tuple[str, ...]:
    """Return the names that `criterion=` takes."""
    return ("similarity", "span")


def make(criterion: Criterion | str, linkage: Linkage = "average") -> Criterion:
    """Return a criterion by its name; a criterion is returned as it is."""
    if not isinstance(criterion, str):
        return criterion
    name = choose(criterion, available(), "criterion")
    return Span() if name == "span" else Similarity(linkage)
