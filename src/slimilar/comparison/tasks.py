"""The work, piece by piece: what there is to do, and what has to be there before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slimilar.comparison.terms import Terms
from slimilar.criteria import facts

PLAIN = "plain"


@dataclass(frozen=True)
class Start:
    """Measure the network before pruning."""

    key = "start"
    title = "the start"


@dataclass(frozen=True)
class TrainingTask:
    """Train before pruning: with a criterion's hooks, or plainly, for criteria without hooks."""

    criterion: str
    seed: int
    budget: str | None = None  # of a method that must know where it is going

    @property
    def key(self) -> str:
        """A name for files."""
        return slug(self.criterion, self.budget, self.seed)

    @property
    def title(self) -> str:
        """A name to display."""
        towards = f" towards {self.budget}" if self.budget else ""
        return f"{self.criterion}, training before pruning{towards} (seed {self.seed})"


@dataclass(frozen=True)
class Choice:
    """Let a criterion order the channels."""

    criterion: str
    seed: int
    phase: TrainingTask | None = None

    @property
    def key(self) -> str:
        """A name for files."""
        return slug(self.criterion, self.phase.budget if self.phase else None, self.seed)

    @property
    def title(self) -> str:
        """A name to display."""
        return f"{self.criterion}, choosing (seed {self.seed})"


@dataclass(frozen=True)
class Entry:
    """Prune to a budget, measure, fine-tune, measure: one row."""

    criterion: str
    substitute: str
    own: bool  # whether the substitute is that of the criterion's paper
    budget: str
    seed: int
    choice: Choice

    @property
    def key(self) -> str:
        """A name for files, and for the row."""
        return slug(self.criterion, self.substitute, self.budget, self.seed)

    @property
    def title(self) -> str:
        """A name to display."""
        return f"{self.criterion}, {self.substitute}, FLOPs {self.budget} (seed {self.seed})"


Task = Start | TrainingTask | Choice | Entry


def needed(task: Task) -> tuple[Task, ...]:
    """Return what must be done before a task."""
    if isinstance(task, Entry):
        return (Start(), task.choice)
    if isinstance(task, Choice) and task.phase is not None:
        return (task.phase,)
    return ()


def entries(terms: Terms) -> Iterator[Entry]:
    """Return every row that the terms ask for: what can share its work stands together."""
    for seed in terms.seeds:
        for criterion in terms.criteria:
            for budget in terms.flops:
                choice = Choice(criterion, seed, _phase(terms, criterion, budget, seed))
                for substitute, own in terms.resolve(criterion).items():
                    yield Entry(criterion, substitute, own, budget, seed, choice)


def _phase(terms: Terms, criterion: str, budget: str, seed: int) -> TrainingTask | None:
    known = facts(criterion)
    if known.needs == "training":
        return TrainingTask(criterion, seed, budget if known.per_budget else None)
    if terms.plain_epochs and terms.sparse_epochs:
        return TrainingTask(PLAIN, seed)
    return None


def in_order(wanted: list[Entry]) -> list[Task]:
    """Return rows with all that they need, each task once and after what it needs."""
    found: dict[Task, None] = {}

    def add(task: Task) -> None:
        for before in needed(task):
            add(before)
        found[task] = None

    for entry in wanted:
        add(entry)
    return list(found)


def slug(*parts: object) -> str:
    """Return a name that any file system takes.

    >>> slug("soft", None, "50%", 0)
    'soft-50%-0'
    """
    return "-".join(re.sub(r"[^\w.%-]", "_", str(part)) for part in parts if part is not None)
