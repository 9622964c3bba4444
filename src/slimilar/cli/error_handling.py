"""One sentence for a user's mistake; a stack trace only with `--debug`."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from slimilar.cli.log import LOG, SHOWN
from slimilar.cli.output import console, escape
from slimilar.errors import InvalidInput, Option, SlimilarError

P = ParamSpec("P")
T = TypeVar("T")
FAILED, MISUSED, STOPPED = 1, 2, 130

# Options whose name on the command line is not that of the Python argument.
_TYPED = {
    "calibration": "--calibrate",
    "folder": "--out",
    "for": "slimilar train MODEL --for",
    "thresholds": "--layer",
}


class Debugging:
    """Whether stack traces are wanted; set once, by the option."""

    wanted = False


def guarded(command: Callable[P, T]) -> Callable[P, T]:
    """Return a command that turns errors into a sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if getattr(error, "errno", None) == errno.EPIPE:  # the reader has seen enough, as in `| head`
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it when it exits)
                raise typer.Exit(0) from None
            if Debugging.wanted:
                raise
            raise typer.Exit(report(error)) from None

    return run


def report(error: BaseException) -> int:
    """Print what went wrong and return the exit code for it."""
    if isinstance(error, KeyboardInterrupt):
        # CPython remembers an interrupt inside of exec(), as in an import of dataclasses, and would end by the signal.
        exec("")
        return _print(str(error) or "stopped", STOPPED)
    if isinstance(error, SlimilarError):
        return _print(error.message(as_typed), MISUSED if isinstance(error, InvalidInput) else FAILED)
    if isinstance(error, OSError):
        return _print(_told(error), FAILED)
    _print(f"{type(error).__name__}: {error}", FAILED)
    return _print(
        "this should not happen: run it again with --debug and report what it shows, please", FAILED
    )


def _told(error: OSError) -> str:
    """Return what the system refused, without its numbers."""
    where = f"{error.filename} cannot be used" if error.filename else "the system refused"
    return f"{where}: {error.strerror or error}; check the path and its permissions"


def as_typed(option: Option) -> str:
    """Return an option as it is typed on the command line.

    >>> as_typed(Option("residual", "joint")), as_typed(Option("min_channels")), as_typed(Option("resume", True))
    ('--residual joint', '--min-channels', '--resume')
    """
    name = _TYPED.get(option.name, f"--{option.name.replace('_', '-')}")
    return f"{name} {option.value}" if isinstance(option.value, str) else name


def _print(text: str, code: int) -> int:
    LOG.log(SHOWN, text)
    console(stderr=True).print(f"[red]slimilar:[/] {escape(text)}")
    return code
