"""What a line of progress shows."""

from __future__ import annotations

from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

_CLOCKS = 22  # columns of the spinner, the time passed, the time left, and the spaces between them
_BAR = 12  # the least that a bar takes


class TimeLeftColumn(TimeRemainingColumn):
    """The time left, if it can be known."""

    def render(self, task: Task) -> Text:
        """Return it with its word."""
        time = super().render(task)
        return time.append(" left") if time.plain.strip("-:") else Text("")


def progress_columns(width: int) -> list[ProgressColumn]:
    """Return what is shown: in a narrow terminal no bar, and never a clock that is cut off."""
    bars = [BarColumn()] if width >= 72 else []
    room = max(1, width - _CLOCKS - _BAR * len(bars))
    name = Column(no_wrap=True, overflow="ellipsis", max_width=room)
    passed, left = (Column(no_wrap=True, min_width=least) for least in (7, 0))
    return [
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=name),
        *bars,
        TimeElapsedColumn(table_column=passed),
        TimeLeftColumn(compact=True, table_column=left),
    ]
