"""Where the trainings of a comparison stand, read from their logs, also while another process goes on with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimilar.comparison.folder import HEADER, read_json
from slimilar.comparison.work import PHASES, RUNS
from slimilar.train.training_log import read_log


@dataclass(frozen=True)
class TrainingStatus:
    """A training that has begun and not ended: the epoch that it is in, and test accuracies of those before."""

    key: str
    before_pruning: bool
    epoch: int
    epochs: int
    by_epoch: tuple[float, ...] = ()

    def __str__(self) -> str:
        stage = "training before pruning" if self.before_pruning else "fine-tuning"
        last = f", {100 * self.by_epoch[-1]:.2f} % after epoch {len(self.by_epoch)}" if self.by_epoch else ""
        return f"{self.key}: {stage}, in epoch {self.epoch} of {self.epochs}{last}"


def under_way(folder: str | Path) -> list[TrainingStatus]:
    """Return the trainings of a comparison that have begun and not ended, those before pruning first."""
    place = Path(folder).expanduser()
    if not (place / HEADER).exists():
        return []
    terms = read_json(place / HEADER)["terms"]
    phases = [p for p in _folders(place / PHASES) if not (p / "score.json").exists()]
    found = [_status(p, True, terms["sparse epochs"]) for p in phases]
    return found + [_status(p, False, terms["epochs"]) for p in _folders(place / RUNS)]


def _folders(place: Path) -> list[Path]:
    return sorted(place.iterdir()) if place.is_dir() else []


def _status(place: Path, before_pruning: bool, epochs: int) -> TrainingStatus:
    entries: list[dict[str, Any]] = read_log(place)
    scores = tuple(entry["test_accuracy"] for entry in entries if "test_accuracy" in entry)
    epoch = max([entry["epoch"] + 1 for entry in entries] + [min(len(scores) + 1, epochs)])
    return TrainingStatus(place.name, before_pruning, epoch, epochs, scores)
