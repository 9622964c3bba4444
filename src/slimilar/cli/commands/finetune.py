"""`slimilar finetune`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.model_options import ModelOptions
from slimilar.cli.model_source import has_random_weights, is_saved
from slimilar.cli.output import Output
from slimilar.cli.training_options import TrainingOptions
from slimilar.cli.training_run import TrainingCommand
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn


def finetune(
    model: options.Model,
    *,
    training: TrainingOptions,
    freeze_statistics: Annotated[
        bool,
        typer.Option(
            "--freeze-statistics",
            help="Batch norms keep their means and variances; for models of prune --calibrate.",
        ),
    ] = False,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Distil from this model, beside the labels: a name or a saved file. --base applies to it too.",
            metavar="MODEL",
        ),
    ] = None,
    teacher_weights: Annotated[
        str | None, typer.Option(help="File of the teacher's weights, or 'default'.", metavar="FILE")
    ] = None,
    source: ModelOptions,
    out: Output,
) -> None:
    """Fine-tune a pruned model, and show its accuracy before and after.

    For a short run on a model of prune --calibrate, use --freeze-statistics --lr 0.003.

    Example: [bold]slimilar finetune small/model.safetensors --data cifar10.npz --epochs 3[/]
    """
    opened = source.open(model).placed(training.device)
    shapes = source.input or tuple("x".join(map(str, shape)) for shape in opened.shapes)
    original = _teacher(teacher, replace(source, weights=teacher_weights, input=shapes), training.device)
    TrainingCommand(out, opened, training)(tune=True, teacher=original, freeze_statistics=freeze_statistics)


def _teacher(name: str | None, source: ModelOptions, device: str) -> nn.Module | None:
    """Return the model to distil from; one without trained weights is refused."""
    if name is None:
        if source.weights is not None:
            raise InvalidInput("--teacher-weights goes with --teacher MODEL, got it alone; leave it out")
        return None
    if source.weights is None and has_random_weights(name):
        raise InvalidInput(
            f"--teacher must be a trained model, but {name} is built with random weights; pass --teacher-weights FILE"
        )
    base = source.base if is_saved(name) else None
    return replace(source, base=base).open(name).placed(device).model
