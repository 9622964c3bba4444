"""The results of a comparison: one row for each pruned network, and the unpruned network as the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """The unpruned network that all rows start from; `accuracy` is a share of `images` test images."""

    accuracy: float
    flops: int
    params: int
    images: int


@dataclass(frozen=True)
class ComparisonRow:
    """One pruned network. Accuracies are shares of the test images; None where there was no such stage."""

    key: str
    criterion: str
    substitute: str
    own: bool  # whether it is the substitute of the criterion's own paper
    budget: str  # as requested
    seed: int
    flops: int | None = None  # as reached
    flops_share: float | None = None
    params: int | None = None
    params_share: float | None = None
    before: float | None = None  # accuracy of the baseline
    prepared: float | None = None  # after a training phase before pruning
    pruned: float | None = None  # right after pruning
    tuned: float | None = None  # after fine-tuning
    epochs: int = 0  # of fine-tuning
    extra_epochs: int = 0  # of training before pruning, which other criteria may not have
    prepare_seconds: float = 0.0
    choose_seconds: float = 0.0
    prune_seconds: float = 0.0
    train_seconds: float = 0.0
    resumed: bool = False  # then seconds count from the last interruption only
    error: str | None = None  # why the network could not be pruned
    # Test accuracy after each epoch of fine-tuning, where that was asked for.
    by_epoch: tuple[float, ...] = ()

    @property
    def final(self) -> float | None:
        """The accuracy that counts: after fine-tuning where there was any."""
        return self.pruned if self.tuned is None else self.tuned


@dataclass(frozen=True)
class Comparison:
    """Everything that is known in a folder: the terms it was made under, the start, and the rows."""

    baseline: Baseline | None
    rows: tuple[ComparisonRow, ...]
    header: Mapping[str, Any]
