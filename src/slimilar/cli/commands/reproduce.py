"""`slimilar reproduce`: the paper's tables and figures, from the experiments of a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.output import Output, escape
from slimilar.errors import SlimilarError


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table1a, table1b, table1c, curve, estimation, normalization, architecture, bound, magnitude, or all.",
            metavar="NAME",
        ),
    ],
    *,
    scale: Annotated[
        str,
        typer.Option(
            help="paper: full settings; medium: a third of the fine-tuning, on CIFAR-10, days on one core; "
            "small: minutes on one core, from published checkpoints; "
            "tiny: seconds, with the shipped network.",
            metavar="NAME",
        ),
    ] = "paper",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of datasets and checkpoints. Default: the environment variable SLIMILAR_DATA.",
            metavar="DIR",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of results. Default: experiments/results.", metavar="DIR"),
    ] = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    output: Output,
) -> None:
    """Run or continue an experiment of the paper, and write its table and figures.

    Run it in the top folder of a checkout: the experiments are not part of the installed package.

    Example: [bold]slimilar reproduce bound --scale tiny --out results[/]
    """
    catalogue = _catalogue()
    files = []
    for chosen in catalogue.NAMES if name == "all" else [name]:
        place = catalogue.RESULTS if out is None else out
        for file in catalogue.reproduce(chosen, scale, data, place, seed, threads):
            output.say(escape(str(file)))
            files.append(str(file))
    output.answer({"files": files})


def _catalogue() -> Any:
    """Return the list of experiments, which lie beside the package in a checkout, or in the folder we are in."""
    for root in (Path(__file__).resolve().parents[4], Path.cwd()):
        if (root / "experiments" / "catalogue.py").is_file():
            sys.path.insert(0, str(root))
            return importlib.import_module("experiments.catalogue")
    raise SlimilarError(
        "the experiments are not part of the installed package; run this in the top folder of a checkout, "
        "which contains experiments/"
    )
