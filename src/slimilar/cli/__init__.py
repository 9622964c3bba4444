"""The command line. Only this package prints or exits; torch is imported by the commands that need it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slimilar._version import __version__
from slimilar.cli.commands import (
    analyze,
    bench,
    compare,
    criteria,
    demo,
    evaluate,
    explore,
    export,
    finetune,
    inspect_file,
    prune,
    reproduce,
    run,
    train,
)
from slimilar.cli.destination import file_for
from slimilar.cli.error_handling import Debugging, guarded, report
from slimilar.cli.log import start_log
from slimilar.cli.option_groups import ungrouped
from slimilar.cli.plain_help import PlainGroup
from slimilar.cli.renamed_options import Command

__all__ = ["app", "main"]

EPILOG = (
    "Exit codes: 0 success, 1 failure, 2 invalid usage, 130 interrupted by Ctrl-C. "
    "The environment variable SLIMILAR_DATA may name a folder of datasets and checkpoints."
)

app = typer.Typer(
    name="slimilar",
    cls=PlainGroup,
    help="Make a trained CNN smaller and faster: remove channels that the remaining ones can replace, and refit "
    "their consumers.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS: dict[str, list[Callable[..., None]]] = {
    "Start here": [demo.demo],
    "Prune": [analyze.analyze, explore.explore, prune.prune, run.run],
    "Train and measure": [train.train, finetune.finetune, evaluate.evaluate, bench.bench],
    "Compare": [compare.compare, criteria.criteria, reproduce.reproduce],
    "Files": [export.export, inspect_file.inspect],
}
for panel, functions in _PANELS.items():
    for function in functions:
        app.command(rich_help_panel=panel, cls=Command)(guarded(ungrouped(function)))


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"slimilar {__version__}\n")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every stage, with the time.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Also append all output to a file.", metavar="FILE"),
    ] = None,
) -> None:
    Debugging.wanted = debug
    start_log(verbose, None if log is None else file_for(log, "--log"))


def _general_first(words: list[str]) -> list[str]:
    """Return the words of a command line with the options of the program before those of the command.

    >>> _general_first(["prune", "m", "--log", "a.log", "--debug"])
    ['--log', 'a.log', '--debug', 'prune', 'm']
    """
    general: list[str] = []
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--log":
            general += [word, *([following] if (following := next(waiting, None)) is not None else [])]
        elif word in ("--debug", "--verbose", "-v") or word.startswith("--log="):
            general.append(word)
        else:
            rest.append(word)
    return general + rest


def main() -> None:
    """Run the command line; --debug, --verbose and --log may stand anywhere."""
    try:
        app(_general_first(sys.argv[1:]))
    except KeyboardInterrupt as error:  # before or after the command itself
        sys.exit(report(error))
