"""Training, fine-tuning and evaluation: on one CPU, or on as many devices as a launcher offers.

    accelerate launch my_script.py        # or torchrun; the script itself does not change

A run with a ``folder`` writes ``last.safetensors`` (all that is needed to go on), ``best.safetensors`` (the
weights with the best test accuracy), ``log.jsonl`` and, where it is installed, TensorBoard's files. It may be
killed at any moment; with ``resume=True`` it goes on and ends with the same weights.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from slimilar.data.images import Images
from slimilar.data.source import Data, Source, as_source
from slimilar.errors import InvalidInput, TrainingError
from slimilar.train.evaluate import Score, evaluate
from slimilar.train.job import Job
from slimilar.train.objective import Distillation, objective
from slimilar.train.recipes import RECIPES, Recipe, recipe
from slimilar.train.run import BEST, LAST, Run
from slimilar.train.settings import EpochRecord, Hooks, Progress, Result, Settings
from slimilar.train.team import Team, placed

__all__ = [
    "BEST",
    "LAST",
    "RECIPES",
    "Distillation",
    "EpochRecord",
    "Hooks",
    "Progress",
    "Recipe",
    "Result",
    "Score",
    "Settings",
    "evaluate",
    "finetune",
    "objective",
    "recipe",
    "train",
]


def train(
    model: nn.Module,
    data: Data,
    recipe: Recipe | str = "one-cycle",
    *,
    test: Data | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    teacher: nn.Module | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (frozen)
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Return a trained copy of ``model``, and the course of its training; ``model`` itself is not touched.

    ``recipe`` is a name out of ``RECIPES`` or a ``Recipe``. With a ``teacher``, usually the network before
    pruning, its scores are learnt beside the labels.

    >>> import torch
    >>> from slimilar.data import Images
    >>> from slimilar.models import VGG
    >>> images = Images(torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8), torch.arange(8))
    >>> short = Recipe(epochs=1, batch_size=4, lr=0.01)
    >>> len(train(VGG(width=0.125), images, short).history)
    1
    """
    if isinstance(recipe, str):
        recipe = _named(recipe)
    place = None if folder is None else Path(folder).expanduser()
    teacher = None if teacher is None else copy.deepcopy(teacher).eval().requires_grad_(False)
    tested = None if test is None else as_source(test)
    team = Team.join()
    if teacher is not None:
        teacher = placed(teacher, team.device)
    job = Job(_near(as_source(data), team), recipe, tested, teacher, hooks, settings, place, progress)
    run = Run(copy.deepcopy(model), job, team)
    _resume(run, place, resume)
    run.to_the_end()
    return Result(_like(run.result(), model), tuple(run.history))


def finetune(
    model: nn.Module,
    data: Data,
    recipe: Recipe | str = "quick",
    *,
    test: Data | None = None,
    **options: Any,
) -> Result:
    """Train a pruned network on; as ``train``, and the result says how good it was at the start."""
    start = None if test is None else evaluate(model, test).accuracy
    result = train(model, data, recipe, test=test, **options)
    return dataclasses.replace(result, start_accuracy=start)


def _named(name: str) -> Recipe:
    return recipe(name)


def _near(data: Source, team: Team) -> Source:
    """Return images held in memory in that of the device, where a batch costs next to nothing."""
    return data.to(team.device) if isinstance(data, Images) else data


def _like(trained: nn.Module, model: nn.Module) -> nn.Module:
    """Put the trained network into evaluation mode; what was frozen before is frozen again, and nothing else."""
    for mine, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    return trained.eval()


def _resume(run: Run, folder: Path | None, wanted: bool) -> None:
    if folder is None:
        if wanted:
            raise InvalidInput("resume=True needs folder=, the folder of the run to go on with")
        return
    last = folder / LAST
    if last.exists() and not wanted:
        raise TrainingError(
            f"{folder} already holds a run; pass resume=True to go on, or choose another folder"
        )
    if last.exists():
        run.load(last)
