"""`slimilar compare`: several criteria under the same terms."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slimilar.cli import options
from slimilar.cli.comparison_options import SubjectOptions, TermsOptions, WorkerOptions
from slimilar.cli.comparison_source import ComparisonSource
from slimilar.cli.destination import folder_for
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.output import Output, ProgressDisplay, escape, percent
from slimilar.errors import SlimilarError
from slimilar.utils.dataset_names import check_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from slimilar.comparison import Comparison, ComparisonRow, Event

TABLE, DATA, CHART = "comparison.md", "comparison.csv", "comparison"


def compare(
    context: typer.Context,
    model: options.Model,
    *,
    subject: SubjectOptions,
    chosen: TermsOptions,
    source: ModelOptions,
    place: Placement,
    workers: WorkerOptions,
    out: options.Out = Path("comparison"),
    output: Output,
) -> None:
    """Prune with several criteria to the same budgets, fine-tune in the same way, and plot accuracy over FLOPs.

    It can be interrupted at any time; the same command resumes it. Each row is written as soon as it is complete.

    Example: [bold]slimilar compare slimilar:demo --criteria similarity,magnitude-l1 --flops 0.7,0.5 -o side-by-side[/]
    """
    source.check(model)
    chosen.check(model, source.base)
    check_dataset(subject.data)
    from slimilar.comparison import chart
    from slimilar.comparison import compare as run
    from slimilar.comparison.tasks import entries

    folder, opener = folder_for(out), ComparisonSource(model, source, place, subject)
    terms = chosen.terms()
    if not chart.can_draw():
        output.note("no charts will be drawn; to draw them, run: pip install 'slimilar\\[plot]'")
    with output.working("Loading the model and the images"):
        terms = chosen.fitting(terms, len(opener().train))
    with output.working("Comparing") as tell:
        found = run(
            opener, terms, folder, **dataclasses.asdict(workers), command=_command(context),
            progress=_shown(output, tell),
        )  # fmt: skip
    _finish(output, found, folder)
    _check_some(found, {entry.key for entry in entries(terms)})


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
        headings, rows = table.without_empty(table.HEADINGS, rows)
        headings = [f"<{h}" if i < 2 else h for i, h in enumerate(headings)]
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
            f"none of the {len(mine)} requested networks could be pruned; the first failure, "
            f"{mine[0].criterion} at {mine[0].budget}: {mine[0].error}"
        )
