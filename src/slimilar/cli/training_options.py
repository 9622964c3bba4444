"""How to train, on what, and where to, as typed on the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import folder_for
from slimilar.cli.known_names import AMP, check_one_of, check_recipe
from slimilar.cli.model_options import Device
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.errors import InvalidInput
from slimilar.utils.dataset_names import check_dataset


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
    recipe: Annotated[
        str,
        typer.Option(
            help="one-cycle, base, quick, reconstructed, paper-vgg, ...; a wrong name lists them. auto: reconstructed "
            "for models pruned with --calibrate, else quick.",
            metavar="NAME",
        ),
    ] = "auto"
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs; overrides the recipe.", min=1, metavar="N")
    ] = None
    lr: options.Rate = None
    limit: options.Limit = None
    preprocessing: PreprocessingOptions = PreprocessingOptions()
    out: options.Out = Path("finetuned")
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False
    seed: options.Seed = 0
    device: Device = "auto"
    amp: options.Amp = "auto"

    def check(self) -> None:
        """Raise for names and places that are not there, before any work; needs no torch."""
        check_recipe(self.recipe)
        check_one_of("amp", self.amp, AMP)
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InvalidInput(
                f"--lr must be a number above 0, got {self.lr:g}; leave it out for that of the recipe"
            )
        check_dataset(self.dataset)
        folder_for(self.out)

    @property
    def dataset(self) -> str:
        """The images to train on: by default CIFAR-10, if a folder of datasets is known."""
        if self.data is not None:
            return self.data
        if "SLIMILAR_DATA" in os.environ:
            return "cifar10"
        raise InvalidInput(
            "--data must name the images to train on, got none: a folder with train and test inside, a .npz file, "
            "cifar10, cifar100, or demo for a try"
        )
