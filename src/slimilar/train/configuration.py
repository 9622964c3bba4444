"""The configuration of a training run, and the part of it that must not change when the run is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from slimilar.data.source import ImageSource
from slimilar.errors import InvalidInput
from slimilar.train.recipes import Recipe
from slimilar.train.settings import Hooks, Progress, TrainingSettings


@dataclass(frozen=True, eq=False)
class RunConfiguration:
    """All that a run needs, except the network."""

    data: ImageSource
    recipe: Recipe
    test: ImageSource | None = None
    teacher: nn.Module | None = None
    hooks: Hooks = Hooks()  # noqa: RUF009 (frozen)
    settings: TrainingSettings = TrainingSettings()  # noqa: RUF009 (frozen)
    folder: Path | None = None
    progress: Callable[[Progress], None] | None = None


def fixed_terms(configuration: RunConfiguration) -> dict[str, Any]:
    """Return what the course of a run depends on, as JSON holds it."""
    distillation = configuration.settings.distillation if configuration.teacher is not None else None
    found = {
        **configuration.recipe.terms(),
        "seed": configuration.settings.seed,
        "training images": len(configuration.data),
        "distillation": None if distillation is None else dataclasses.asdict(distillation),
        "hooks": configuration.hooks.name,
    }
    loaded: dict[str, Any] = json.loads(json.dumps(found))
    return loaded


def check_fixed_terms(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise where a resumed run has other terms: its result would belong to neither."""
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        raise InvalidInput(
            f"{name} must be {before.get(name)!r} as in the run that wrote {path}, got {now.get(name)!r}; "
            "resume with the same recipe, seed and data, or start again in another folder"
        )
