"""One sentence for a user's mistake; a stack trace only with `--debug`."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from slimilar.cli.output import console, escape
from slimilar.cli.spoken import spoken
from slimilar.errors import InvalidInput, SlimilarError

P = ParamSpec("P")
T = TypeVar("T")
FAILED, MISUSED, STOPPED = 1, 2, 130


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
            raise typer.Exit(complain(error)) from None

    return run


def complain(error: BaseException) -> int:
    """Say what went wrong and return the exit code for it."""
    if isinstance(error, KeyboardInterrupt):
        return _say("stopped", STOPPED)
    if isinstance(error, SlimilarError):
        return _say(spoken(str(error)), MISUSED if isinstance(error, InvalidInput) else FAILED)
    if isinstance(error, OSError):
        return _say(str(error), FAILED)
    _say(f"{type(error).__name__}: {error}", FAILED)
    return _say("this should not happen: run it again with --debug and report what it shows, please", FAILED)


def _say(text: str, code: int) -> int:
    console(stderr=True).print(f"[red]slimilar:[/] {escape(text)}")
    return code
