"""`slimilar run`: what a recipe says, once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.output import Output
from slimilar.cli.pruning_result import model_in
from slimilar.cli.recipe_file import read_recipe, words_of


def run(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="A recipe.yaml written by `slimilar prune`.", metavar="RECIPE")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results. Default: the recipe's.", metavar="DIR"),
    ] = None,
    force: options.Force = False,
    output: Output,
) -> None:
    """Repeat the pruning of a recipe, and compare the model with the first one.

    Paths in a recipe are stored as typed, so run it in the same folder.

    Example: [bold]slimilar run small/recipe.yaml -o again[/]
    """
    command = context.find_root().command.commands["prune"]  # type: ignore[attr-defined]
    read = read_recipe(recipe, [p.name for p in command.params if p.name])
    if out is not None:
        read = replace(read, options={**read.options, "out": str(out)})
    shown = ("--json", output.json), ("--quiet", output.quiet)
    extra = [word for word, wanted in (("--force", force), *shown) if wanted]
    code = command.main([*words_of(read), *extra], prog_name="slimilar prune", standalone_mode=False)
    if code:  # the reason has been printed
        raise typer.Exit(code)
    if read.digest is not None:
        from slimilar.deploy.file_format import inspect

        model = model_in(Path(str(read.options.get("out", "pruned"))).expanduser())
        same = inspect(model).info.get("digest") == read.digest
        told = "is identical to" if same else "differs from"
        why = "" if same else ": other versions, another machine, or changed files"
        output.note(f"the model {told} the one that was written with the recipe{why}")
