"""`slimilar prune`: from a model to a smaller one, with its plan, a report and the recipe to do it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.budget_checks import check_budget_size, check_budget_unit
from slimilar.cli.images import ImageReader
from slimilar.cli.model_source import OpenedModel, open_model, parse_layers, parse_rounding
from slimilar.cli.output import Output, escape
from slimilar.cli.plans import Planned, PlanOptions, planned
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.cli.pruning_accuracy import Accuracy, MeasuredAccuracy
from slimilar.cli.pruning_result import described, next_commands, places_for, show_cut, show_result, write
from slimilar.cli.recipe_file import recipe_of
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.deploy.runtimes import Runtime
    from slimilar.planning.target import PruningTarget
    from slimilar.result import Result

_DATA = "Accuracy"
Data = Annotated[
    str | None,
    typer.Option(
        help="Measure accuracy before and after: demo, cifar10, a folder with train and test inside, a .npz file.",
        metavar="DATA",
        rich_help_panel=_DATA,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Use only the first N images of --data.", min=1, metavar="N", rich_help_panel=_DATA),
]
Finetune = Annotated[
    int | None,
    typer.Option(
        help="Then fine-tune on the training images of --data.",
        min=1,
        metavar="EPOCHS",
        rich_help_panel=_DATA,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; write nothing.")]


def prune(
    context: typer.Context,
    model: options.Model,
    threshold: options.Threshold = None,
    flops: options.Flops = None,
    macs: options.Macs = None,
    params: options.Params = None,
    latency: options.Latency = None,
    ratio: options.Ratio = None,
    quantile: options.Quantile = None,
    round_to: options.RoundTo = "auto",
    layer: options.Layer = None,
    exclude: options.Exclude = None,
    calibrate: options.Calibrate = None,
    images: options.Images = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    criterion: options.Criterion = "auto",
    trained: options.Trained = False,
    reconstruction: options.Reconstruction = "auto",
    residual: options.Residual = "inner",
    linkage: options.Linkage = "average",
    min_channels: options.MinChannels = 1,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    runtime: options.Runtime = "pytorch",
    threads: options.RuntimeThreads = None,
    batch: options.RuntimeBatch = None,
    data: Data = None,
    limit: Limit = None,
    finetune: Finetune = None,
    seed: options.Seed = 0,
    out: options.Out = Path("pruned"),
    force: options.Force = False,
    dry_run: DryRun = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prune a model to a threshold or a budget; write the smaller model, the plan, a report and the recipe.

    Example: [bold]slimilar prune slimilar:demo --flops 0.5 -o small[/]
    """
    from slimilar.deploy.runtimes import Runtime
    from slimilar.planning.target import PruningTarget

    output = Output(json, quiet)
    target = PruningTarget.of(
        threshold=threshold, flops=flops, macs=macs, params=params, latency=latency, ratio=ratio, quantile=quantile,
        round_to=parse_rounding(round_to), thresholds=parse_layers(layer),
    )  # fmt: skip
    measured_with = Runtime(runtime, threads, batch)
    check_budget_unit(target)
    _check(target, data, finetune, dry_run)
    places = places_for(out, model.endswith(".onnx"), force or dry_run)
    prepared = PreprocessingOptions(normalise, mean, std, resize, crop)
    chosen = PlanOptions(
        residual, linkage, tuple(exclude or ()), min_channels, criterion, calibrate, images, prepared,
        reconstruction, seed, trained,
    )  # fmt: skip
    opened = open_model(model, weights, input, base).placed(device, dtype)
    accuracy = Accuracy.of(ImageReader(output, opened, prepared), data, limit, finetune is not None)
    found = planned(output, opened, chosen, target.kind)
    check_budget_size(target, found.plan.before)
    if dry_run:
        show_cut(output, found.plan, found.plan.cut(target))
        output.say("[bold]Nothing was written[/]: leave out --dry-run to prune.")
        return output.answer({"cut": dict(found.plan.cut(target).widths)})
    result = pruned(output, opened, found, target, measured_with)
    measured = MeasuredAccuracy()
    if accuracy is not None:
        result, measured = accuracy.measured(
            output, result, finetune, calibrated=found.images is not None, seed=seed
        )
    written = write(output, places, opened, found, result, measured, recipe_of(context))
    show_result(output, result, target, measured)
    for what, path in written.items():
        output.say(f"{what:<8} [bold]{escape(path)}[/]")
    output.say("\nNext")
    for command in next_commands(opened, written["model"], data):
        output.say(f"  {escape(command)}")
    output.answer(described(opened, result, written, measured))
    return None


def _check(target: PruningTarget, data: str | None, finetune: int | None, dry_run: bool) -> None:
    """Raise for options that do not go together, before any work."""
    if finetune is not None and data is None:
        raise InvalidInput("--finetune needs images with labels, got none; pass --data")
    if dry_run and target.kind == "latency":
        raise InvalidInput(
            "--dry-run shows a plan, got --latency, which is met by measuring pruned models; leave one out"
        )


def pruned(
    out: Output,
    opened: OpenedModel,
    found: Planned,
    target: PruningTarget,
    runtime: str | Runtime = "pytorch",
) -> Result:
    """Return the smaller model of a plan at a target."""
    import slimilar

    with out.working("Building the smaller model") as tell:
        return slimilar.apply(
            opened.model, opened.example(), found.plan, target, reconstruction=found.options.reconstruction,
            calibration=found.images, runtime=runtime, seed=found.options.seed, progress=tell.stage,
        )  # fmt: skip
