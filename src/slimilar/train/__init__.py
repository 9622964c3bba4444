"""Training, fine-tuning and evaluation: on one CPU, or on as many devices as a launcher offers.

    accelerate launch my_script.py        # or torchrun; the script itself does not change

A run with a ``folder`` writes ``last.safetensors`` (all that is needed to continue), ``best.safetensors`` (the
weights with the best test accuracy), ``log.jsonl`` and, where it is installed, TensorBoard's files. It may be
killed at any moment; with ``resume=True`` it continues and ends with the same weights.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from slimilar.data.images import Images
from slimilar.data.source import Data, ImageSource, UnlabelledImages, as_image_source
from slimilar.errors import InvalidInput, Option
from slimilar.train.configuration import RunConfiguration
from slimilar.train.distributed import DistributedContext, placed
from slimilar.train.evaluate import Score, evaluate
from slimilar.train.loss import Distillation, training_loss
from slimilar.train.recipes import RECIPES, Recipe, recipe
from slimilar.train.recipes import recipe as recipe_named
from slimilar.train.run import BEST, LAST, TrainingRun, check_new_run
from slimilar.train.settings import EpochRecord, Hooks, Progress, TrainingResult, TrainingSettings

__all__ = [
    "BEST",
    "LAST",
    "RECIPES",
    "Distillation",
    "EpochRecord",
    "Hooks",
    "Progress",
    "Recipe",
    "Score",
    "TrainingResult",
    "TrainingSettings",
    "evaluate",
    "finetune",
    "recipe",
    "train",
    "training_loss",
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
    settings: TrainingSettings = TrainingSettings(),  # noqa: B008 (frozen)
    progress: Callable[[Progress], None] | None = None,
) -> TrainingResult:
    """Return a trained copy of ``model`` and the history of its training. ``model`` is not modified.

    ``recipe`` is a name in ``RECIPES`` or a ``Recipe``. ``teacher``, usually the network before pruning, adds
    distillation from its scores to the labels. ``data`` may then be a tensor of unlabelled images, as for the
    calibration of ``prune``; the accuracies in the history are then agreement with the teacher.

    >>> import torch
    >>> from slimilar.data import Images
    >>> from slimilar.models import VGG
    >>> images = Images(torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8), torch.arange(8))
    >>> short = Recipe(epochs=1, batch_size=4, lr=0.01)
    >>> len(train(VGG(width=0.125), images, short).history)
    1
    """
    chosen = recipe_named(recipe) if isinstance(recipe, str) else recipe
    place = None if folder is None else Path(folder).expanduser()
    context = DistributedContext.join(model)
    source = as_image_source(data)
    configuration = RunConfiguration(
        _on_device(source, context), chosen, None if test is None else as_image_source(test),
        None if teacher is None else _frozen(teacher, context), hooks, _settings(settings, source, teacher), place,
        progress,
    )  # fmt: skip
    run = TrainingRun(copy.deepcopy(model), configuration, context)
    _resume(run, place, resume)
    run.complete()
    return TrainingResult(_like(run.state.result(), model), tuple(run.state.history))


def finetune(
    model: nn.Module,
    data: Data,
    recipe: Recipe | str = "quick",
    *,
    test: Data | None = None,
    **options: Any,
) -> TrainingResult:
    """Fine-tune a pruned network. As ``train``, but the result also holds the accuracy before fine-tuning.

    ``recipe="reconstructed"`` is for networks that were reconstructed on calibration images: it freezes batch-norm
    statistics in short trainings. Without labels:
    ``finetune(result.model, images, "reconstructed", teacher=original)``.
    """
    start = None if test is None else evaluate(model, test).accuracy
    result = train(model, data, recipe, test=test, **options)
    return dataclasses.replace(result, start_accuracy=start)


def _settings(settings: TrainingSettings, data: ImageSource, teacher: nn.Module | None) -> TrainingSettings:
    """Learn from the teacher alone where there are no labels."""
    if not isinstance(data, UnlabelledImages):
        return settings
    if teacher is None:
        raise InvalidInput(
            "images without labels need ",
            Option("teacher"),
            ", usually the network before pruning, got none; pass it, or images with labels",
        )
    return dataclasses.replace(settings, distillation=dataclasses.replace(settings.distillation, weight=1.0))


def _on_device(data: ImageSource, context: DistributedContext) -> ImageSource:
    """Move images that are held in memory to the device, where making a batch costs next to nothing."""
    return data.to(context.device) if isinstance(data, Images) else data


def _frozen(teacher: nn.Module, context: DistributedContext) -> nn.Module:
    return placed(copy.deepcopy(teacher).eval().requires_grad_(False), context.device)


def _like(trained: nn.Module, model: nn.Module) -> nn.Module:
    """Put the trained network into evaluation mode and freeze what was frozen before."""
    for mine, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    return trained.eval()


def _resume(run: TrainingRun, folder: Path | None, wanted: bool) -> None:
    if folder is None:
        if wanted:
            raise InvalidInput(
                Option("resume", True),
                " needs ",
                Option("folder"),
                ", the folder of the run to continue, got none",
            )
        return
    last = folder / LAST
    if not wanted:
        check_new_run(folder)
    elif last.exists():
        run.state.load(last)
