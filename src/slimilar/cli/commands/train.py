"""`slimilar train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import folder_for
from slimilar.cli.model_source import open_model
from slimilar.cli.options import Epochs, Limit, Rate, Resume, TrainingData
from slimilar.cli.output import Output
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.training_phase import For, PhaseOptions, Stream, Strength, Towards
from slimilar.cli.training_run import TrainingCommand, changed_recipe


def train(
    model: options.Model,
    data: TrainingData = None,
    recipe: Annotated[
        str, typer.Option(help="one-cycle, base, quick, ...; a wrong name lists them.", metavar="NAME")
    ] = "one-cycle",
    epochs: Epochs = None,
    lr: Rate = None,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    weights: options.Weights = None,
    input: options.Input = None,
    out: options.Out = Path("trained"),
    resume: Resume = False,
    seed: options.Seed = 0,
    criterion: For = None,
    flops: Towards = None,
    strength: Strength = None,
    residual: Stream = "inner",
    device: options.Device = "auto",
    amp: options.Amp = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model. It may be killed at any moment and resumed, and runs under torchrun and accelerate.

    Example: [bold]slimilar train slimilar:resnet20 --data cifar10.npz -o runs/resnet20[/]
    """
    import torch

    torch.manual_seed(seed)
    opened = open_model(model, weights, input).placed(device)
    run = TrainingCommand(
        Output(json, quiet), opened, data, limit, PreprocessingOptions(normalise, mean, std, resize, crop)
    )
    phase = PhaseOptions(criterion, flops, strength, residual)
    run(changed_recipe(recipe, epochs, lr), folder_for(out), resume, seed, phase=phase, amp=amp)
