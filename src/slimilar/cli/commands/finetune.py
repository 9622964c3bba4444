"""`slimilar finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import folder_for
from slimilar.cli.model_source import (
    OpenedModel,
    has_random_weights,
    is_saved,
    open_model,
    original_with_weights,
)
from slimilar.cli.options import Epochs, Limit, Rate, Resume, TrainingData
from slimilar.cli.output import Output, escape
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.training_run import TrainingCommand, changed_recipe
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn


def finetune(
    model: options.Model,
    data: TrainingData = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="reconstructed, quick, paper-vgg, ...; a wrong name lists them. By default reconstructed for models "
            "of prune --calibrate, quick for others.",
            metavar="NAME",
        ),
    ] = None,
    epochs: Epochs = None,
    lr: Rate = None,
    freeze_statistics: Annotated[
        bool,
        typer.Option(
            "--freeze-statistics",
            help="Batch norms keep their means and variances, as in the recipe reconstructed.",
        ),
    ] = False,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Distil from this model, beside the labels: a name or a saved file. --base applies to it too. By "
            "default the original of a model of prune --calibrate, where its name comes with weights.",
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
            help="Learn from the teacher alone: --data needs no labels, such as any folder of images.",
        ),
    ] = False,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    out: options.Out = Path("finetuned"),
    resume: Resume = False,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    amp: options.Amp = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fine-tune a pruned model, and show its accuracy before and after.

    A model of prune --calibrate is trained by a recipe that keeps what was fitted.

    Example: [bold]slimilar finetune small/model.safetensors --data cifar10.npz --epochs 3[/]
    """
    output, opened = Output(json, quiet), open_model(model, weights, input, base).placed(device)
    shapes = input or ["x".join(map(str, shape)) for shape in opened.shapes]
    by_default = recipe is None or unlabelled
    named = teacher or (original_with_weights(opened) if by_default else None)
    distilled = _teacher(named, teacher_weights, shapes, base, device)
    if unlabelled and distilled is None:
        raise InvalidInput("--unlabelled needs a model to learn from, got none; pass --teacher MODEL")
    run = TrainingCommand(
        output, opened, data, limit, PreprocessingOptions(normalise, mean, std, resize, crop), unlabelled
    )
    chosen = changed_recipe(
        recipe or _default_recipe(run.out, opened, named), epochs, lr, freeze_statistics or None
    )
    if named and not teacher:
        run.out.note(f"teacher: {escape(named)}, the model before pruning")
    run(chosen, folder_for(out), resume, seed, tune=True, teacher=distilled, amp=amp)


def _default_recipe(out: Output, opened: OpenedModel, teacher: str | None) -> str:
    """Return the recipe that suits a model, and say which, and why, where it is not the usual one."""
    if not opened.fitted:
        return "quick"
    out.note(
        "recipe reconstructed (batch norms keep their statistics, small rate), because the model was fitted to "
        f"{opened.fitted} images"
    )
    if not teacher:
        out.note("there is no teacher; --teacher MODEL, the model before pruning, keeps more accuracy")
    return "reconstructed"


def _teacher(
    name: str | None, weights: str | None, shapes: list[str] | None, base: str | None, device: str
) -> nn.Module | None:
    """Return the model to distil from; one without trained weights is refused."""
    if name is None:
        if weights is not None:
            raise InvalidInput("--teacher-weights goes with --teacher MODEL, got it alone; leave it out")
        return None
    if weights is None and has_random_weights(name):
        raise InvalidInput(
            f"--teacher must be a trained model, but {name} is built with random weights; pass --teacher-weights FILE"
        )
    return open_model(name, weights, shapes, base if is_saved(name) else None).placed(device).model
