"""What a terminal shows: tables within its width, and lines of progress that are not written over."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from slimilar.cli import output
from slimilar.cli.output import Output
from slimilar.cli.progress_line import progress_columns
from slimilar.cli.tables import fitting_table

WIDTHS = [40, 52, 60, 66, 72, 80, 100, 120, 200]
TABLES = {
    "layers": (["<layer", "channels", "-30.0 %", "-60.3 %", "-80.0 %"], [["features.conv1_1", "24", "16", "9", "5"]]),
    "saved": (
        ["<engine", "<model", "FLOPs", "time", "time saved / FLOPs saved"],
        [["pytorch", "small/model.safetensors", "-50.2 %", "-44.9 %", "0.89"]],
    ),
    "bars": (["FLOPs", "<method", "accuracy", "<"], [["-50 %", "same, reconstructed", "88.1 %", "[green]██████[/]"]]),
    "facts": (["<", "<"], [["made from", "slimilar:demo"], ["tensors", "80, of which 61 are smaller"]]),
    "empty": (["<layer", "kept"], []),
}  # fmt: skip


def drawn(screen: Console) -> str:
    """Return what was written so far, without colours."""
    assert isinstance(screen.file, io.StringIO)
    return Text.from_ansi(screen.file.getvalue()).plain


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_cut_off(name, width):
    headings, rows = TABLES[name]
    screen = Console(file=io.StringIO(), width=width, highlight=False)
    screen.print(fitting_table(headings, rows, width))
    lines = drawn(screen).splitlines()
    assert max(map(len, lines), default=0) <= width
    words = {w for row in rows for cell in row for w in Text.from_markup(cell).plain.split()}
    assert words <= set(" ".join(lines).split())
    assert not [line for line in lines if re.fullmatch(r"\s*%\s*", line)]  # numbers keep their sign


def test_a_wide_terminal_gets_a_table_as_wide_as_its_text():
    screen = Console(file=io.StringIO(), width=200)
    screen.print(fitting_table(*TABLES["layers"], 200))
    assert max(len(line.rstrip()) for line in drawn(screen).splitlines()) == 58


@pytest.mark.parametrize("width", [40, 60, 72, 80, 120])
def test_clocks_are_never_cut_off(width):
    screen = Console(file=io.StringIO(), width=width, force_terminal=True)
    with Progress(*progress_columns(width), console=screen, auto_refresh=False, get_time=lambda: 0.0) as bar:
        bar.add_task("Pruning to 50% of the FLOPs: chosen and reconstructed on 256 images", total=None)
        bar.refresh()
    frame = drawn(screen).splitlines()[-1]
    assert "0:00:00" in frame
    assert "left" not in frame  # nobody knows
    assert ("…" in frame) == (width < 120)
    assert len(frame.rstrip()) <= width


def test_a_note_does_not_continue_the_line_of_progress(monkeypatch):
    screen = Console(file=io.StringIO(), width=60, force_terminal=True, highlight=False)
    monkeypatch.setattr(output, "console", lambda stderr=False: screen)
    with Output().working("Pruning"):
        monkeypatch.setattr(output, "console", lambda stderr=False: Console(file=io.StringIO()))
        Output().note("a remark")
    assert "\x1b[2K\x1b[2ma remark" in screen.file.getvalue()
