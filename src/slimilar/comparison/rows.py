"""What comes out: one row for each network that was pruned, all beside the network they started from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """The network that everybody starts from; `accuracy` is a share of `images` test images."""

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
    own: bool  # whether that is what the criterion's paper does
    budget: str  # as asked
    seed: int
    flops: int | None = None  # as reached
    flops_share: float | None = None
    params: int | None = None
    params_share: float | None = None
    before: float | None = None  # accuracy of the common start
    prepared: float | None = None  # after a training phase before pruning
    pruned: float | None = None  # right after pruning
    tuned: float | None = None  # after fine-tuning
    epochs: int = 0  # of fine-tuning
    extra_epochs: int = 0  # of training before pruning, which others may not have had
    prepare_seconds: float = 0.0
    choose_seconds: float = 0.0
    prune_seconds: float = 0.0
    train_seconds: float = 0.0
    resumed: bool = False  # then seconds count from the last interruption only
    error: str | None = None  # why there is no such network

    @property
    def final(self) -> float | None:
        """The accuracy to judge by: after fine-tuning where there was any."""
        return self.pruned if self.tuned is None else self.tuned


@dataclass(frozen=True)
class Comparison:
    """Everything that is known in a folder: the terms it was made under, the start, and the rows."""

    baseline: Baseline | None
    rows: tuple[ComparisonRow, ...]
    header: Mapping[str, Any]
