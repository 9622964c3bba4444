"""What every task brings to the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from _accuracy.images import Task
from torch import nn

Scores = dict[str, float]


@dataclass(frozen=True, eq=False)
class Case:
    """A trained network with its images, the shares of its FLOPs to try, and how a pruned one is scored."""

    task: Task
    budgets: tuple[float, ...]
    score: Callable[[nn.Module], Scores]
