"""Tables that fit the terminal: no word of them is cut off, and none is broken if that can be avoided."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

_LONGEST = 60  # characters of a name that is never broken
_UNITS = re.compile(r"\S+ %|\S+")  # what stays on one line: a word, or a number with its sign


def fitting_table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table of at most a width; a heading that begins with `<` stands on the left, the others on the right.

    One that cannot be so narrow is written line by line.
    """
    tries = ((tight, breaks) for breaks in (False, True) for tight in (False, True))
    tables = (_table(headings, rows, width, tight, breaks) for tight, breaks in tries)
    return next((table for table in tables if table is not None), None) or _stacked(headings, rows, width)


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, tight: bool, breaks: bool
) -> Table | None:
    """Return the table; None if a line would have to be broken, or, where that is allowed, a word."""
    titles = [heading.removeprefix("<") for heading in headings]
    named = any(titles)
    edges, between = (2, 3) if named else (0, 2)
    room = width - edges - (between - tight) * (len(titles) - 1)
    cells = [[title, *(row[i] for row in rows)] for i, title in enumerate(titles)]
    widths = _widths(cells, room)
    if widths is None or (len(rows) and not breaks and widths != _widths(cells, 10_000)):
        return None
    table = Table(
        box=box.SIMPLE_HEAD if named else None, show_header=named, pad_edge=False, collapse_padding=tight
    )
    for heading, title, wide in zip(headings, titles, widths, strict=True):
        side: JustifyMethod = "left" if heading.startswith("<") else "right"
        # Given, not left to rich: it narrows columns below their least width, and then cuts off the last one.
        table.add_column(title, justify=side, overflow="fold", width=wide)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the widths of columns of cells: what they would like, or less, in proportion; None if words are too long.

    >>> _widths([["layer", "features.conv1"], ["what leaves", "the channels that are alike"]], 30)
    [14, 16]
    """
    lines = [[Text.from_markup(cell).plain for cell in cells] for cells in columns]
    liked = [max(map(cell_len, cells), default=0) for cells in lines]
    least = [
        max((cell_len(unit) for cell in cells for unit in _UNITS.findall(cell)), default=0) for cells in lines
    ]
    least = [min(words, _LONGEST) for words in least]
    spare, wish = room - sum(least), sum(liked) - sum(least)
    if spare < 0:
        return None
    if wish <= spare:
        return liked
    return [low + (high - low) * spare // wish for low, high in zip(least, liked, strict=True)]


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return the same for a narrow terminal: below the first cell of a row, a line for each of the others."""
    titles = [heading.removeprefix("<") for heading in headings]
    table = Table(box=None, show_header=False)
    # A long heading is broken before a name is; where both are too long, it is left to rich.
    widths = _widths([titles, [cell for row in rows for cell in row]], width - 4)
    for side in (0, 1):
        table.add_column(overflow="fold", width=widths[side] if widths else None)
    for row in rows:
        table.add_row(titles[0], f"[bold]{row[0]}[/]")
        for title, text in zip(titles[1:], row[1:], strict=True):
            if text:
                table.add_row(title, text)
        table.add_row("", "")
    return table
