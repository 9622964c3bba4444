"""`slimilar explore`: the interactive page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import file_for
from slimilar.cli.model_source import open_model
from slimilar.cli.output import Output
from slimilar.cli.plans import PlanOptions, planned, write_page
from slimilar.cli.preprocessing_options import PreprocessingOptions


def explore(
    model: options.Model,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    criterion: options.Criterion = "similarity",
    trained: options.Trained = False,
    calibrate: options.Calibrate = None,
    images: options.Images = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    residual: options.Residual = "inner",
    linkage: options.Linkage = "average",
    exclude: options.Exclude = None,
    min_channels: options.MinChannels = 1,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", metavar="FILE")] = Path(
        "explore.html"
    ),
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write an interactive page to choose a threshold, and open it.

    Example: [bold]slimilar explore slimilar:demo[/]
    """
    output, out = Output(json, quiet), file_for(out)
    opened = open_model(model, weights, input, base).placed(device, dtype)
    chosen = PlanOptions(
        residual, linkage, tuple(exclude or ()), min_channels, criterion, calibrate, images,
        PreprocessingOptions(normalise, mean, std, resize, crop),
        seed=seed, trained=trained,
    )  # fmt: skip
    page = write_page(output, out, opened, planned(output, opened, chosen))
    output.answer({"report": str(page)})
    if open:
        webbrowser.open(page.resolve().as_uri())
