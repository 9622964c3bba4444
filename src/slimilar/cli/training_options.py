"""How to train, on what, and where to, as typed on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.model_options import Device
from slimilar.cli.preprocessing_options import PreprocessingOptions


@dataclass(frozen=True)
class TrainingOptions:
    """What `slimilar train` and `slimilar finetune` share."""

    data: Annotated[
        str | None,
        typer.Option(
            help="A folder with train and test inside (one folder for each class), a .npz file with x_train, y_train, "
            "x_test, y_test (bytes N x H x W x C, whole numbers), cifar10, cifar100 or demo. Default: cifar10 in the "
            "folder SLIMILAR_DATA.",
            metavar="DATA",
        ),
    ] = None
    recipe: options.RecipeName = "quick"
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs, in place of the recipe's.", min=1, metavar="N")
    ] = None
    lr: options.Rate = None
    limit: options.Limit = None
    preprocessing: PreprocessingOptions = PreprocessingOptions()
    out: options.Out = Path("finetuned")
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False
    seed: options.Seed = 0
    device: Device = "auto"
    amp: options.Amp = "auto"
