"""`slimilar compare`: several criteria under the same terms."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.comparison_source import ComparisonSource
from slimilar.cli.destination import folder_for
from slimilar.cli.options import Data, Rate
from slimilar.cli.output import Output, ProgressDisplay, escape, percent
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.errors import InvalidInput, SlimilarError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from slimilar.comparison import Comparison, ComparisonRow, Event
    from slimilar.train import Recipe

TABLE, DATA, CHART = "comparison.md", "comparison.csv", "comparison"

Criteria = Annotated[
    str, typer.Option(help="Names separated by commas, or 'all'. See slimilar criteria.", metavar="A,B,C")
]
Flops = Annotated[
    str, typer.Option(help="Budgets separated by commas: shares or numbers.", metavar="BUDGETS")
]
Epochs = Annotated[int, typer.Option(help="Epochs of fine-tuning; 0 for none.", min=0, metavar="N")]
Reconstruction = Annotated[
    str,
    typer.Option(
        help="own (what the criterion's paper does), none, merge, mean, linear, auto; separated by commas.",
        metavar="METHODS",
    ),
]
SparseEpochs = Annotated[
    int,
    typer.Option(help="Epochs of training before pruning, for criteria that need it.", min=0, metavar="N"),
]
PlainEpochs = Annotated[
    bool,
    typer.Option(
        "--plain-epochs", help="Give the other criteria as many epochs before pruning, without a penalty."
    ),
]
RecipeName = Annotated[
    str, typer.Option(help="quick, paper-vgg, ...; a wrong name lists them.", metavar="NAME")
]
Images = Annotated[
    int | None,
    typer.Option(
        help="Training images drawn for calibration. Default: 512, or all if there are fewer.",
        metavar="N",
    ),
]
TrainImages = Annotated[
    int | None, typer.Option(help="Train on N images, evenly spaced.", min=2, metavar="N")
]
TestImages = Annotated[int | None, typer.Option(help="Test on N images, evenly spaced.", min=2, metavar="N")]
HeldOut = Annotated[
    int | None,
    typer.Option(
        help="Validation: test on N training images that are kept out of training.", min=2, metavar="N"
    ),
]
Seed = Annotated[str, typer.Option(help="Seeds separated by commas.", metavar="SEEDS")]
Jobs = Annotated[int, typer.Option(help="Number of processes.", min=1, metavar="N")]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads of each process. Default: an equal share of the cores.", min=1, metavar="N"),
]
Engine = Annotated[
    str,
    typer.Option(
        help="local, or ray: the cluster of RAY_ADDRESS, which must share the folder.", metavar="NAME"
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the pruned networks.")]


def compare(
    context: typer.Context,
    model: options.Model,
    data: Data = "demo",
    criteria: Criteria = "all",
    flops: Flops = "0.5",
    epochs: Epochs = 1,
    reconstruction: Reconstruction = "own",
    sparse_epochs: SparseEpochs = 1,
    plain_epochs: PlainEpochs = False,
    recipe: RecipeName = "quick",
    lr: Rate = None,
    images: Images = None,
    train_images: TrainImages = None,
    test_images: TestImages = None,
    held_out: HeldOut = None,
    residual: options.Residual = "inner",
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    seed: Seed = "0",
    jobs: Jobs = 1,
    threads: Threads = None,
    engine: Engine = "local",
    keep: Keep = False,
    out: options.Out = Path("comparison"),
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prune with several criteria to the same budgets, fine-tune alike, and plot accuracy over FLOPs.

    It may be stopped at any moment; the same command continues it. Each row is written as soon as it is known.

    Example: [bold]slimilar compare slimilar:demo --criteria similarity,magnitude-l1 --flops 0.7,0.5 -o side-by-side[/]
    """
    from slimilar.comparison import Terms, chart
    from slimilar.comparison import compare as run
    from slimilar.comparison.tasks import entries
    from slimilar.criteria import available

    output, folder = Output(json, quiet), folder_for(out)
    opener = ComparisonSource(
        model,
        weights,
        tuple(input or ()),
        base,
        data,
        PreprocessingOptions(normalise, mean, std, resize, crop),
        train_images,
        test_images,
        held_out,
        device,
        dtype,
    )
    shared: dict[str, Any] = {
        "flops": _words(flops, "flops"), "substitutes": _words(reconstruction, "reconstruction"),
        "seeds": _numbers(seed), "epochs": epochs, "recipe": _recipe(recipe, lr), "sparse_epochs": sparse_epochs,
        "plain_epochs": plain_epochs, "residual": residual, "keep": keep,
    }  # fmt: skip
    names = available() if criteria == "all" else _words(criteria, "criteria")
    terms = Terms(names, images=512 if images is None else images, **shared)
    if not chart.can_draw():
        output.note("no curves will be drawn: pip install 'slimilar\\[plot]'")
    with output.working("Reading the model and the images"):
        subject = opener()
    if images is None:
        terms = dataclasses.replace(terms, images=min(512, len(subject.train)))
    with output.working("Comparing") as tell:
        found = run(
            opener, terms, folder, jobs=jobs, threads=threads, engine=engine, command=_command(context),
            progress=_shown(output, tell),
        )  # fmt: skip
    _finish(output, found, folder)
    _check_some(found, {entry.key for entry in entries(terms)})


# --- what is asked ----------------------------------------------------------------------------------------------


def _recipe(name: str, lr: float | None) -> Recipe:
    from slimilar.train import recipe

    return recipe(name) if lr is None else dataclasses.replace(recipe(name), lr=lr)


def _words(text: str, name: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise InvalidInput(f"--{name} must name at least one, got {text!r}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text, "seed"))
    except ValueError as error:
        raise InvalidInput(f"--seed must be whole numbers separated by commas, got {text!r}") from error


def _command(context: typer.Context) -> str:
    """Return the command as it was typed, without options that do not affect the rows."""
    words = ["slimilar", "compare"]
    for parameter in context.command.params:
        name, source = str(parameter.name), context.get_parameter_source(str(parameter.name))
        if name in ("json", "quiet") or source is None or source.name != "COMMANDLINE":
            continue
        option = [] if parameter.param_type_name == "argument" else [max(parameter.opts, key=len)]
        value = context.params[name]
        for one in value if isinstance(value, list | tuple) else [value]:
            words += option if one is True else [*option, shlex.quote(str(one))]
    return " ".join(words)


# --- what is shown ----------------------------------------------------------------------------------------------


def _shown(out: Output, tell: ProgressDisplay) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        tell.stage(event.title, event.done, event.total)
        if event.row is not None:
            out.note(f"{event.done}/{event.total} {escape(event.title)}: {escape(_told(event.row))}")
        elif event.skipped:
            out.note(escape(event.title))

    return show


def _told(row: ComparisonRow) -> str:
    if row.error is not None:
        return row.error
    tuned = "" if row.tuned is None else f", {percent(row.tuned)} after fine-tuning"
    return f"{percent(row.flops_share or 0)} of the FLOPs, accuracy {percent(row.pruned or 0)}{tuned}"


def _finish(out: Output, found: Comparison, folder: Path) -> None:
    """Write the table, the data and the curves, and show the table."""
    from slimilar.comparison import chart, table
    from slimilar.utils.atomic import write_text

    written = [
        write_text(folder / TABLE, table.markdown(found)),
        write_text(folder / DATA, table.as_csv(found.rows)),
    ]
    if chart.can_draw() and any(row.error is None for row in found.rows):
        images = [folder / f"{CHART}{suffix}" for suffix in (".png", ".svg")]
        chart.draw(found, images)
        written += images
    every = table.lines(found.rows)
    for budget in dict.fromkeys(line.budget for line in every):
        rows = [[escape(cell) for cell in table.cells(line)] for line in every if line.budget == budget]
        headings = [f"<{h}" if i < 2 else h for i, h in enumerate(table.HEADINGS)]
        out.table(headings, rows, title=f"FLOPs budget {budget}, numbers in %")
    for row in found.rows:
        if row.error is not None:
            out.say(escape(f"{row.criterion}, {row.substitute}, {row.budget}, seed {row.seed}: {_told(row)}"))
    for path in written:
        out.say(f"[bold]{escape(path)}[/]")
    out.answer({**dataclasses.asdict(found), "files": [str(path) for path in written]})


def _check_some(found: Comparison, asked: Collection[str]) -> None:
    """Raise if none of the networks that were asked for could be made."""
    mine = [row for row in found.rows if row.key in asked]
    if all(row.error is not None for row in mine):
        raise SlimilarError(
            f"at least one of the {len(mine)} networks asked for must be made, but none was; the first of them, "
            f"{mine[0].criterion} at {mine[0].budget}, because {mine[0].error}"
        )
