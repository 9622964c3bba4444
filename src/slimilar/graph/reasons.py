"""Why channels have to stay: a kind for code, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FreezeKind(Enum):
    """The kinds of reasons for which channels stay; code compares these, never the sentences."""

    MODEL_OUTPUT = "model output"
    UNKNOWN_OPERATOR = "unknown operator"
    MIXED_CHANNELS = "mixed channels"  # each result depends on every channel: layer norm, softmax, attention
    FIXED_SIZE = "fixed size"  # the code, or a tensor without channels of its own, has a fixed number of them
    RESIDUAL_STREAM = "residual stream"
    LAST_CHANNEL = "last channel"  # one of a layer, or of a part of a split, has to stay
    TRAINING_ONLY = "training only"  # runs only in training, and could not be run
    NOT_RUN = "not run"  # does not run on the example, neither in eval mode nor in training
    EXCLUDED = "excluded"  # by the user
    UNTRAINED_NORM = "untrained norm"  # all channels are equally far apart
    CRITERION = "criterion"  # the criterion has no order for the group


@dataclass(frozen=True)
class Reason:
    """Why some channels have to stay."""

    kind: FreezeKind
    text: str

    def __str__(self) -> str:
        return self.text


MODEL_OUTPUT = Reason(FreezeKind.MODEL_OUTPUT, "model output")
RESIDUAL_STREAM = Reason(FreezeKind.RESIDUAL_STREAM, 'residual stream (pruned in residual mode "joint")')
LAST_OF_SPLIT = Reason(FreezeKind.LAST_CHANNEL, "the last of its part of a split")
LAST_OF_LAYER = Reason(FreezeKind.LAST_CHANNEL, "the last of its layer")


def unknown(operator: str) -> Reason:
    """Return the reason for channels that reach an operator, or a form of it, that no rule describes."""
    return Reason(FreezeKind.UNKNOWN_OPERATOR, f"operator {operator}")


def mixes(operator: str) -> Reason:
    """Return the reason for channels of which each changes the results for all others."""
    return Reason(FreezeKind.MIXED_CHANNELS, f"operator {operator} mixes channels")


def fixed_size(text: str) -> Reason:
    """Return the reason for channels whose number the code or another tensor fixes."""
    return Reason(FreezeKind.FIXED_SIZE, text)
