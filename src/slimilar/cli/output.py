"""Output of the commands: tables, JSON, progress on stderr, plots of characters."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli.log import LOG, SHOWN, STAGE

if TYPE_CHECKING:
    from rich.console import Console

_BARS: list[Console] = []  # the consoles of progress bars that are shown now
_WIDE = 200  # columns where there is no terminal: a file or a pipe has no edge


@dataclass(frozen=True)
class Output:
    """Where a command writes: to a reader, as JSON, or nothing but errors. A group of two options."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False

    @property
    def silent(self) -> bool:
        """Whether no text is written."""
        return self.json or self.quiet

    def say(self, text: str = "") -> None:
        """Write a line of text; [bold]markup[/] is understood."""
        _log(text)
        if not self.silent:
            console().print(text)

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        _log(text)
        if not self.silent:
            # By the console of the progress bar, if there is one: another would write on into the bar's line.
            screen = _BARS[-1] if _BARS else console(stderr=True)
            screen.print(f"[dim]{text}[/]")

    def next(self, *commands: str) -> None:
        """Write the commands that may follow, so that each can be copied as a whole."""
        self.say("\nNext")
        for command in commands:
            _log(escape(command))
            if not self.silent:
                printed = console()
                printed.print("  " + escape(continued(command, printed.width - 2)), soft_wrap=True)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
        """Write a table; a heading that begins with `<` stands on the left, the others on the right."""
        _log_table(headings, rows, title)
        if self.silent:
            return
        from slimilar.cli.tables import fitting_table

        screen = console()
        if title:  # a table's own title is broken at the table's edge, not at the terminal's
            screen.print(f"[bold]{title}[/]")
        screen.print(fitting_table(headings, rows, screen.width))

    def answer(self, data: Any) -> None:
        """Write the answer as JSON, if that was asked for."""
        if self.json:
            sys.stdout.write(json.dumps(data, indent=1) + "\n")
            sys.stdout.flush()

    @contextmanager
    def working(self, what: str) -> Iterator[ProgressDisplay]:
        """Show that work is going on; the yielded object takes how far it is."""
        LOG.log(STAGE, what)
        errors = console(stderr=True)
        if self.silent or not errors.is_terminal:
            yield ProgressDisplay()
            return
        from rich.progress import Progress

        from slimilar.cli.progress_line import progress_columns

        with Progress(*progress_columns(errors.width), console=errors, transient=True) as bar:
            task = bar.add_task(what, total=None)
            _BARS.append(errors)
            try:
                yield ProgressDisplay(
                    lambda **changes: bar.update(task, **changes), lambda: bar.reset(task, total=None)
                )
            finally:
                _BARS.pop()


def _log(text: str) -> None:
    """Write a line of text to the log, without its markup."""
    if LOG.isEnabledFor(SHOWN):
        from rich.text import Text

        LOG.log(SHOWN, Text.from_markup(text).plain)


def _log_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    if LOG.isEnabledFor(SHOWN):
        lines = [heading.removeprefix("<") for heading in headings], *rows
        for line in ([title] if title else [], *lines):
            _log(" | ".join(line))


class ProgressDisplay:
    """Takes how far the work is, and shows it in a terminal."""

    def __init__(
        self, update: Callable[..., None] | None = None, restart: Callable[[], None] = lambda: None
    ) -> None:
        self.update, self.restart = update, restart  # each stage has its own clock, and its own time left
        self.latest = ""  # the stage that was shown last

    def __call__(self, share: float) -> None:
        """Show the share that is done."""
        if self.update is not None:
            self.update(total=1.0, completed=share)

    def stage(self, what: str, done: int, steps: int) -> None:
        """Show how many steps of a stage are done."""
        if what != self.latest:
            self.latest = what
            LOG.log(STAGE, what)
            self.restart()
        if self.update is not None:
            self.update(description=what[:1].upper() + what[1:], total=max(1, steps), completed=done)


def console(stderr: bool = False) -> Console:
    """Return a console for this moment's stdout or stderr: colours only where a terminal shows them."""
    stream = sys.stderr if stderr else sys.stdout
    edge = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return _console_class()(stderr=stderr, highlight=False, width=edge, soft_wrap=False)


@functools.cache
def _console_class() -> type[Console]:
    """Return rich's console, for which a reader that has seen enough, as in `| head`, is no failure."""
    from rich.console import Console

    class PipeableConsole(Console):
        def on_broken_pipe(self) -> None:
            with suppress(SystemExit):
                super().on_broken_pipe()
            raise SystemExit(0)

    return PipeableConsole


def escape(text: object) -> str:
    """Return a text in which nothing is taken for markup."""
    from rich.markup import escape as escaped

    return str(escaped(str(text)))


def continued(command: str, width: int) -> str:
    """Return a command on lines of at most a width, broken between its options as a shell reads it.

    >>> print(continued("slimilar prune net.py:Net --input 3x32x32 --flops 0.5 -o small", 44))
    slimilar prune net.py:Net --input 3x32x32 \\
          --flops 0.5 -o small
    """
    parts: list[list[str]] = [[]]
    for word in shlex.split(command):
        parts += [[]] if word.startswith("-") else []
        parts[-1].append(word)
    lines = [""]
    for part in map(shlex.join, parts):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append("    " + part)
        else:
            lines[-1] = f"{lines[-1]} {part}".strip() if len(lines) == 1 else f"{lines[-1]} {part}"
    return " \\\n  ".join(lines)


def percent(share: float) -> str:
    """Return a share in per cent.

    >>> percent(0.5), percent(0.123)
    ('50.0 %', '12.3 %')
    """
    return f"{100 * share:.1f} %"


def less(before: float, after: float) -> str:
    """Return by how much something fell.

    >>> less(200, 50), less(0, 0), less(200, 220)
    ('-75.0 %', '0.0 %', '+10.0 %')
    """
    change = round(100 * (after / before - 1), 1) if before else 0.0
    return f"{change:+.1f} %" if change else "0.0 %"


def bar(share: float, width: int = 20) -> str:
    """Return a share as a bar of characters.

    >>> bar(0.5, width=4), bar(1, width=4)
    ('██', '████')
    """
    eighths = round(8 * width * share)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def plot(points: Sequence[tuple[float, float]], width: int = 60, height: int = 13) -> list[str]:
    """Draw a curve of shares in [0, 1] over [0, 1] in braille, two by four dots to a character.

    >>> print("\\n".join(plot([(0, 1), (1, 0)], width=8, height=5)))
    100 % ┤⠑⡀
     75 % ┤ ⠈⠢
     50 % ┤   ⠑⢄
     25 % ┤     ⠢⡀
      0 % ┤      ⠈⢄
          └────────
           0  0.5 1
    """
    cells = [[0] * width for _ in range(height)]
    for i in range(2 * width):
        y = _value(points, i / (2 * width - 1))
        row = min(4 * height - 1, max(0, round((1 - y) * (4 * height - 1))))
        cells[row // 4][i // 2] |= _DOTS[row % 4][i % 2]
    ticks = {round(i * (height - 1) / 4): f"{100 - 25 * i:3} % ┤" for i in range(5)}
    drawn = ["".join(chr(0x2800 + dots) if dots else " " for dots in row).rstrip() for row in cells]
    lines = [ticks.get(r, "      │") + text for r, text in enumerate(drawn)]
    return [*lines, "      └" + "─" * width, " " * 6 + _axis(width)]


def _axis(width: int) -> str:
    """Return the shares below a curve, each in the middle of its place."""
    shares = (0, 0.25, 0.5, 0.75, 1) if width >= 30 else (0, 0.5, 1)
    line = [" "] * (width + 3)
    for text, share in ((f"{share:g}", share) for share in shares):
        start = max(1, round(share * (width - 1)) + 1 - len(text) // 2)
        line[start : start + len(text)] = text
    return "".join(line).rstrip()


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def _value(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the height of a line through some points."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]
