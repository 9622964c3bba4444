"""`slimilar finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.model_source import folder_for, open_model
from slimilar.cli.options import Data, Epochs, Limit, Rate, Resume
from slimilar.cli.output import Output
from slimilar.cli.training_run import TrainingCommand, changed_recipe


def finetune(
    model: options.Model,
    data: Data = "cifar10",
    recipe: Annotated[
        str, typer.Option(help="quick, paper-vgg, ...; a wrong name lists them.", metavar="NAME")
    ] = "quick",
    epochs: Epochs = None,
    lr: Rate = None,
    freeze_statistics: Annotated[
        bool,
        typer.Option(
            "--freeze-statistics",
            help="Batch norms keep their means and variances; for models of prune --calibrate.",
        ),
    ] = False,
    teacher: Annotated[
        str | None, typer.Option(help="Distil from this model, beside the labels.", metavar="MODEL")
    ] = None,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
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

    For a short run on a model of prune --calibrate, use --freeze-statistics --lr 0.003.

    Example: [bold]slimilar finetune small/model.safetensors --data cifar10.npz --epochs 3[/]
    """
    opened = open_model(model, weights, input, base).placed(device)
    distilled = open_model(teacher, None, input).placed(device).model if teacher else None
    run = TrainingCommand(Output(json, quiet), opened, data, limit, normalise)
    chosen = changed_recipe(recipe, epochs, lr, freeze_statistics or None)
    run(chosen, folder_for(out), resume, seed, tune=True, teacher=distilled, amp=amp)
