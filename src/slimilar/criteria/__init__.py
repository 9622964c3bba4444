"""Criteria: in which order channels leave."""

from __future__ import annotations

from collections.abc import Callable

from slimilar.criteria.base import Criterion, Sight, Weights
from slimilar.criteria.ranking import Ranking
from slimilar.criteria.similarity import Similarity
from slimilar.criteria.span import Span
from slimilar.names import choose
from slimilar.similarity import Linkage

__all__ = ["Criterion", "Ranking", "Sight", "Similarity", "Span", "Weights", "available", "make", "register"]

_MAKERS: dict[str, Callable[[Linkage], Criterion]] = {
    "similarity": lambda linkage: Similarity(linkage),
    "span": lambda _: Span(),
    "magnitude-l1": lambda _: Ranking("magnitude-l1"),
    "magnitude-l2": lambda _: Ranking("magnitude-l2"),
    "bn-scale": lambda _: Ranking("bn-scale"),
    "random": lambda _: Ranking("random"),
}


def available() -> tuple[str, ...]:
    """Return the names that `criterion=` takes.

    >>> available()[:2]
    ('similarity', 'span')
    """
    return tuple(_MAKERS)


def register(name: str, maker: Callable[[], Criterion]) -> None:
    """Enter a criterion of one's own, so that it can be asked for by name."""
    _MAKERS[name] = lambda _: maker()


def make(criterion: Criterion | str, linkage: Linkage = "average") -> Criterion:
    """Return a criterion by its name; a criterion is returned as it is."""
    if not isinstance(criterion, str):
        return criterion
    return _MAKERS[choose(criterion, available(), "criterion")](linkage)
