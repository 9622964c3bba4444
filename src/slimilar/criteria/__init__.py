"""Criteria: in which order channels leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from slimilar.criteria.base import CalibrationView, Criterion, Facts, Weights
from slimilar.criteria.duplicates import Duplicates
from slimilar.criteria.elimination import Span
from slimilar.criteria.geometric import GeometricMedian
from slimilar.criteria.lasso import ChannelLasso
from slimilar.criteria.properties import as_markdown
from slimilar.criteria.ranking import Ranking
from slimilar.criteria.similarity import Similarity
from slimilar.criteria.similarity_variants import SimilarityVariant
from slimilar.criteria.slimming import Slimming
from slimilar.criteria.soft import Soft
from slimilar.criteria.sparsity import StructuredSparsity
from slimilar.criteria.taylor import Taylor
from slimilar.criteria.thinet import ThiNet
from slimilar.criteria.training import training_hooks
from slimilar.planning.target import TargetKind
from slimilar.similarity.linkage import Linkage
from slimilar.utils.suggestions import choose

__all__ = [
    "CalibrationView",
    "ChannelLasso",
    "Criterion",
    "Duplicates",
    "Facts",
    "GeometricMedian",
    "Ranking",
    "Similarity",
    "SimilarityVariant",
    "Slimming",
    "Soft",
    "Span",
    "StructuredSparsity",
    "Taylor",
    "ThiNet",
    "Weights",
    "available",
    "facts",
    "make",
    "properties_table",
    "register",
    "training_hooks",
]


@dataclass(frozen=True)
class _Entry:
    maker: Callable[[Linkage], Criterion]
    facts: Facts


_UNDECLARED = Facts("A criterion of one's own.")


def _entry(maker: Callable[[], Criterion], facts: Facts | None = None) -> _Entry:
    if facts is None:
        facts = getattr(maker(), "facts", None) or _UNDECLARED
    return _Entry(lambda _: maker(), facts)


# With fewer, a quarter of them says nothing about the others.
ENOUGH_IMAGES = 16

_KNOWN: dict[str, _Entry] = {
    "similarity": _Entry(lambda linkage: Similarity(linkage), Similarity.facts),
    "span": _entry(Span),
    "slimming": _entry(Slimming),
    "structured-sparsity": _entry(StructuredSparsity),
    "duplicates": _entry(Duplicates),
    "geometric-median": _entry(GeometricMedian),
    "thinet": _entry(ThiNet),
    "channel-lasso": _entry(ChannelLasso),
    "soft": _entry(Soft),
    "magnitude-l1": _entry(lambda: Ranking("magnitude-l1")),
    "magnitude-l2": _entry(lambda: Ranking("magnitude-l2")),
    "bn-scale": _entry(lambda: Ranking("bn-scale")),
    "random": _entry(lambda: Ranking("random")),
    "taylor": _entry(Taylor),
    "similarity-active": _Entry(
        lambda linkage: SimilarityVariant("similarity-active", linkage),
        SimilarityVariant("similarity-active").facts,
    ),
    "similarity-filters": _Entry(
        lambda linkage: SimilarityVariant("similarity-filters", linkage),
        SimilarityVariant("similarity-filters").facts,
    ),
    "similarity-images": _Entry(
        lambda linkage: SimilarityVariant("similarity-images", linkage),
        SimilarityVariant("similarity-images").facts,
    ),
    "similarity-consumers": _Entry(
        lambda linkage: SimilarityVariant("similarity-consumers", linkage),
        SimilarityVariant("similarity-consumers").facts,
    ),
}


# Earlier names of criteria, which keep working.
_ALIASES = {"similarity-pictures": "similarity-images", "similarity-readers": "similarity-consumers"}


def available() -> tuple[str, ...]:
    """Return the names that `criterion=` takes.

    >>> available()[:2]
    ('similarity', 'span')
    """
    return tuple(_KNOWN)


def automatic(images: int, target: TargetKind | None = None) -> str:
    """Return what "auto" stands for: `span` for a budget with enough images, else the paper's similarity.

    >>> automatic(0), automatic(15), automatic(1024), automatic(1024, "threshold")
    ('similarity', 'similarity', 'span', 'similarity')
    """
    return "span" if images >= ENOUGH_IMAGES and target != "threshold" else "similarity"


def _entry_of(name: str) -> _Entry:
    return _KNOWN[choose(_ALIASES.get(name, name), available(), "criterion")]


def facts(criterion: Criterion | str) -> Facts:
    """Return what a criterion, by name or as an object, declares about itself.

    >>> facts("span").needs, facts("similarity").automatic
    ('images', True)
    """
    if isinstance(criterion, str):
        return _entry_of(criterion).facts
    found: Facts = getattr(criterion, "facts", None) or _UNDECLARED
    return found


def properties_table() -> str:
    """Return what all criteria declare, as a Markdown table: the properties of the paper's table 1, and more."""
    return as_markdown({name: facts(name) for name in available()})


def register(name: str, maker: Callable[[], Criterion], facts: Facts | None = None) -> None:
    """Enter a criterion of one's own, so that it can be asked for by name; `facts` where it has none itself."""
    _KNOWN[name] = _entry(maker, facts)


def make(criterion: Criterion | str, linkage: Linkage = "average", *, trained: bool = False) -> Criterion:
    """Return a criterion by its name; a criterion is returned as it is.

    `trained` declares that the weights have gone through the criterion's training phase, where it has one: a model that
    `slimilar.train` returns remembers it, weights in a file do not.
    """
    if not isinstance(criterion, str):
        return criterion
    made: Any = _entry_of(criterion).maker(linkage)
    found: Criterion = replace(made, trained=True) if trained and hasattr(made, "trained") else made
    return found
