"""`slimilar evaluate`: accuracy with confidence intervals."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.confidence import wilson
from slimilar.cli.images import ImageReader, laid_out
from slimilar.cli.model_source import open_models
from slimilar.cli.options import Data, Limit
from slimilar.cli.output import Output, escape, percent
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.training_run import precision_of

if TYPE_CHECKING:
    from slimilar.train import Score


def evaluate(
    models: Annotated[list[str], typer.Argument(help="Models to evaluate.", metavar="MODEL...")],
    data: Data = "demo",
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    amp: options.Amp = "off",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure accuracy on test images, with 95 % confidence intervals.

    Example: [bold]slimilar evaluate slimilar:demo small/model.safetensors --data demo[/]
    """
    from slimilar.train import evaluate as score

    out = Output(json, quiet)
    found: dict[str, Score] = {}
    prepared = PreprocessingOptions(normalise, mean, std, resize, crop)
    for name, found_model in open_models(models, weights, input, base).items():
        opened = found_model.placed(device, dtype)
        images = ImageReader(out, opened, prepared).labelled(data, "test", limit)
        with out.working(f"Evaluating {name}"):
            found[name] = score(opened.model, laid_out(images, opened), precision=precision_of(amp))
    rows = [
        [escape(name), percent(s.accuracy), "{:.1f}..{:.1f}".format(*(100 * x for x in wilson(s.accuracy, s.images))),
         percent(s.top5), f"{s.loss:.3f}", str(s.images)]
        for name, s in found.items()
    ]  # fmt: skip
    out.table(["<model", "accuracy", "<95 %", "top-5", "loss", "images"], rows)
    out.answer({name: dataclasses.asdict(score) for name, score in found.items()})
