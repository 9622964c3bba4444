"""One sentence for a user's mistake; a stack trace only with `--debug`."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

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
            if Debugging.wanted or getattr(error, "errno", None) == errno.EPIPE:
                raise
            raise typer.Exit(report(error)) from None

    return run


def report(error: BaseException) -> int:
    """Print what went wrong and return the exit code for it."""
    if isinstance(error, KeyboardInterrupt):
        return _print("stopped", STOPPED)
    if isinstance(error, SlimilarError):
        return _print(error.message(as_typed), MISUSED if isinstance(error, InvalidInput) else FAILED)
    if isinstance(error, OSError):
        return _print(str(error), FAILED)
    _print(f"{type(error).__name__}: {error}", FAILED)
    return _print(
        "this should not happen: run it again with --debug and report what it shows, please", FAILED
    )


def as_typed(option: Option) -> str:
    """Return an option as it is typed on the command line.

    >>> as_typed(Option("residual", "joint")), as_typed(Option("min_channels")), as_typed(Option("resume", True))
    ('--residual joint', '--min-channels', '--resume')
    """
    name = _TYPED.get(option.name, f"--{option.name.replace('_', '-')}")
    return f"{name} {option.value}" if isinstance(option.value, str) else name


def _print(text: str, code: int) -> int:
    console(stderr=True).print(f"[red]slimilar:[/] {escape(text)}")
    return code
