"""What a criterion needs, and the one check that it is there: before images are read and before any work starts."""

from __future__ import annotations

from dataclasses import dataclass

from slimilar.criteria.base import Facts, Need
from slimilar.errors import InvalidInput, Option


@dataclass(frozen=True)
class Given:
    """What there is for a criterion: images, their labels, and weights that went through its training phase."""

    images: bool = False
    labels: bool = False
    trained: bool = False


def missing(facts: Facts, given: Given) -> Need | None:
    """Return what a criterion needs and does not have.

    >>> missing(Facts("", needs="labels"), Given(images=True))
    'labels'
    """
    if facts.needs == "training":
        return None if given.trained else "training"
    if facts.needs in ("images", "labels") and not given.images:
        return "images"
    return "labels" if facts.needs == "labels" and not given.labels else None


def check_needs(name: str, facts: Facts, given: Given) -> None:
    """Raise unless there is what a criterion declares to need."""
    lacking = missing(facts, given)
    if lacking == "training":
        raise _untrained(name, facts)
    if lacking is not None and facts.needs == "labels":
        got = "none" if lacking == "images" else "images that have no labels"
        both = Option("calibration", code="calibration= with labels=, or calibration=")
        raise InvalidInput(
            f'criterion "{name}" follows the loss on labelled images, got {got}: pass ', both,
            " with images and their labels",
        )  # fmt: skip
    if lacking == "images":
        given_so = Option("calibration", code="calibration=")
        raise InvalidInput(
            f'criterion "{name}" measures activations on images, got none: pass ', given_so, " with unlabelled images"
        )  # fmt: skip


def _untrained(name: str, facts: Facts) -> InvalidInput:
    home = "slimilar.criteria"
    hooks = f'hooks={home}.training_hooks("{name}", model, example)'
    train = Option("for", f"{name} --flops 0.5" if facts.per_budget else name, hooks)
    declare = Option("trained", True, f'criterion={home}.make("{name}", trained=True)')
    return InvalidInput(
        f'criterion "{name}" needs a training phase, of which this model has no record: '
        "train it first with ", train, ", or, if its weights were trained so elsewhere, pass ", declare,
    )  # fmt: skip
