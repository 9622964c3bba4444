"""`slimilar finetune`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.model_options import ModelOptions
from slimilar.cli.model_source import has_random_weights, is_saved, original_with_weights
from slimilar.cli.output import Output, escape
from slimilar.cli.training_options import TrainingOptions
from slimilar.cli.training_run import AUTO, TrainingCommand
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
            help="Freeze the statistics of batch norms, as in the recipe reconstructed.",
        ),
    ] = False,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Teacher to distil from, in addition to the labels: a name or a saved file. --base applies to it "
            "too. By "
            "default, for a model pruned with --calibrate, the original, if its weights can be loaded by name.",
            metavar="MODEL",
        ),
    ] = None,
    teacher_weights: Annotated[
        str | None, typer.Option(help="File of the teacher's weights, or 'default'.", metavar="FILE")
    ] = None,
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled",
            help="Learn from the teacher only. --data needs no labels: any folder of images will do.",
        ),
    ] = False,
    source: ModelOptions,
    out: Output,
) -> None:
    """Fine-tune a pruned model, and show its accuracy before and after.

    By default, a model that was pruned with --calibrate is trained with a recipe that preserves its reconstruction.

    Example: [bold]slimilar finetune small/model.safetensors --data cifar10.npz --epochs 3[/]
    """
    training.check()
    opened = source.open(model).placed(training.device)
    shapes = source.input or tuple("x".join(map(str, shape)) for shape in opened.shapes)
    by_default = training.recipe == AUTO or unlabelled
    named = teacher or (original_with_weights(opened) if by_default else None)
    original = _teacher(named, replace(source, weights=teacher_weights, input=shapes), training.device)
    if unlabelled and original is None:
        raise InvalidInput("--unlabelled needs a teacher, got none; pass --teacher MODEL")
    run = TrainingCommand(out, opened, training, unlabelled=unlabelled)
    if named and not teacher:
        run.out.note(f"teacher: {escape(named)}, the model before pruning")
    run(tune=True, teacher=original, freeze_statistics=freeze_statistics)


def _teacher(name: str | None, source: ModelOptions, device: str) -> nn.Module | None:
    """Return the model to distil from; one without trained weights is refused."""
    if name is None:
        if source.weights is not None:
            raise InvalidInput(
                "--teacher-weights needs --teacher MODEL, got none; pass both, or leave it out"
            )
        return None
    if source.weights is None and has_random_weights(name):
        raise InvalidInput(
            f"--teacher must be a trained model, but {name} is built with random weights; pass --teacher-weights FILE"
        )
    base = source.base if is_saved(name) else None
    return replace(source, base=base).open(name).placed(device).model
