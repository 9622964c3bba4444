"""`slimilar explore`: the interactive page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import file_for
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.output import Output
from slimilar.cli.plan_options import PlanOptions
from slimilar.cli.plans import planned, write_page


def explore(
    model: options.Model,
    *,
    source: ModelOptions,
    place: Placement,
    plan: PlanOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", metavar="FILE")] = Path(
        "explore.html"
    ),
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    output: Output,
) -> None:
    """Write an interactive page to choose a threshold, and open it.

    Example: [bold]slimilar explore slimilar:demo[/]
    """
    file = file_for(out)
    plan.check(model, source.base)
    opened = place.of(source.open(model))
    page = write_page(output, file, opened, planned(output, opened, plan))
    output.answer({"report": str(page)})
    if open:
        webbrowser.open(page.resolve().as_uri())
