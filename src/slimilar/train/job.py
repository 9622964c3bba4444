"""All that a training run is given, and the part of it that a resumed run must be given again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from slimilar.data.source import Source
from slimilar.errors import InvalidInput
from slimilar.train.recipes import Recipe
from slimilar.train.settings import Hooks, Progress, Settings


@dataclass(frozen=True, eq=False)
class Job:
    """All that a run is given, but for the network."""

    data: Source
    recipe: Recipe
    test: Source | None = None
    teacher: nn.Module | None = None
    hooks: Hooks = Hooks()  # noqa: RUF009 (frozen)
    settings: Settings = Settings()  # noqa: RUF009 (frozen)
    folder: Path | None = None
    progress: Callable[[Progress], None] | None = None


def terms(job: Job) -> dict[str, Any]:
    """Return what decides on the course of a run, as JSON knows it."""
    found = {
        **job.recipe.terms(),
        "seed": job.settings.seed,
        "training images": len(job.data),
        "distillation": dataclasses.asdict(job.settings.distillation) if job.teacher is not None else None,
        "hooks": job.hooks.name,
    }
    loaded: dict[str, Any] = json.loads(json.dumps(found))
    return loaded


def check_terms(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to resume under other terms; the outcome would be neither the one run nor the other."""
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        raise InvalidInput(
            f"{name} must be {before.get(name)!r} as in the run that wrote {path}, got {now.get(name)!r}; "
            "resume with the same recipe, seed and data, or start anew in another folder"
        )
