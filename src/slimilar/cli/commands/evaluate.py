"""`slimilar evaluate`: accuracy with confidence intervals."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.confidence import wilson
from slimilar.cli.images import ImageReader, laid_out
from slimilar.cli.known_names import AMP, check_one_of
from slimilar.cli.labels import classes_of
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.output import Output, escape, percent
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.training_run import precision_of
from slimilar.utils.dataset_names import check_dataset

if TYPE_CHECKING:
    from slimilar.train import Score


def evaluate(
    models: Annotated[list[str], typer.Argument(help="Models to evaluate.", metavar="MODELS")],
    *,
    data: options.Data = "demo",
    limit: options.Limit = None,
    prepared: PreprocessingOptions,
    source: ModelOptions,
    place: Placement,
    amp: options.Amp = "off",
    out: Output,
) -> None:
    """Measure accuracy on test images, with 95 % confidence intervals.

    Example: [bold]slimilar evaluate slimilar:demo small/model.safetensors --data demo[/]
    """
    source.check(*models)
    check_dataset(data)
    check_one_of("amp", amp, AMP)
    from slimilar.train import evaluate as score

    found: dict[str, Score] = {}
    several = False  # classes: with up to five, the right one is always among the best five
    for name, found_model in source.open_all(models).items():
        opened = place.of(found_model)
        several |= (classes_of(opened) or 0) > 5
        images = ImageReader(out, opened, prepared).labelled(data, "test", limit)
        with out.working(f"Evaluating {name}"):
            found[name] = score(opened.model, laid_out(images, opened), precision=precision_of(amp))
    rows = [
        [escape(name), percent(s.accuracy), "{:.1f}..{:.1f}".format(*(100 * x for x in wilson(s.accuracy, s.images))),
         *[percent(s.top5)] * several, f"{s.loss:.3f}", str(s.images)]
        for name, s in found.items()
    ]  # fmt: skip
    out.table(["<model", "accuracy", "<95 %", *["top-5"] * several, "loss", "images"], rows)
    out.answer({name: dataclasses.asdict(score) for name, score in found.items()})
