"""What a criterion needs, asked for in the words of the command line, before anything takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn


def wants_labels(criterion: str) -> bool:
    """Tell whether a criterion follows the loss."""
    from slimilar.criteria import facts

    return facts(criterion).needs == "labels"


def check_needs(criterion: str, calibrate: str | None, trained: bool, model: nn.Module) -> None:
    """Raise unless a command has what its criterion needs: images, labels, a training phase."""
    from slimilar.criteria import facts

    needs = facts(criterion).needs
    if trained and needs != "training":
        raise InvalidInput(f"--trained is for {_phases()}, got --criterion {criterion}; leave it out")
    if needs == "images" and calibrate is None:
        raise InvalidInput(
            f"criterion {criterion!r} looks at images, got none: pass --calibrate with a folder, a .npz file, "
            "cifar10, demo, or the word synthesize"
        )
    if needs == "labels" and calibrate in (None, "synthesize"):
        got = "none" if calibrate is None else "synthesised ones, which have no labels"
        raise InvalidInput(
            f"criterion {criterion!r} follows the loss on labelled images, got {got}: pass --calibrate with cifar10, "
            "demo, a .npz file that has labels, or a folder with one folder of images for each class"
        )
    if needs == "training" and not trained:
        _check_phase(criterion, model)


def _check_phase(criterion: str, model: nn.Module) -> None:
    from slimilar.criteria import facts
    from slimilar.criteria.base import phases_of

    if criterion not in phases_of(model):
        budget = " --flops 0.5" if facts(criterion).per_budget else ""
        raise InvalidInput(
            f"criterion {criterion!r} comes after a training phase of its own, and nothing says that these weights had "
            f"it: train with slimilar train MODEL --for {criterion}{budget}, and prune what that writes; or pass "
            "--trained if they had it elsewhere"
        )


def _phases() -> str:
    from slimilar.criteria import available, facts

    *most, last = [name for name in available() if facts(name).needs == "training"]
    return f"criteria with a training phase ({', '.join(most)} and {last})"
