"""Write docs/cli.md, the reference of the command line, from the program itself: make docs does it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

from slimilar.cli import EPILOG, app

FILE = Path(__file__).parents[1] / "docs" / "cli.md"


def reference() -> str:
    """Return the page."""
    root: Any = typer.main.get_command(app)
    general = (
        "These options apply to every command. `--debug`, `--verbose` and `--log` may also stand after it."
    )
    parts = ["# Command line", EPILOG, general, _table(root)]
    for name, command in root.commands.items():
        parts += [f"## slimilar {name}", _plain(inspect.cleandoc(command.help or "")), _table(command)]
    return "\n\n".join(parts) + "\n"


def _table(command: Any) -> str:
    rows = ["| option | meaning | default |", "|---|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        is_option = parameter.param_type_name == "option"
        given = parameter.opts if is_option else [parameter.metavar or parameter.name]
        names = ", ".join(f"`{name}`" for name in given)
        metavar = f" {parameter.metavar}" if is_option and parameter.metavar else ""
        default = parameter.default
        shown = "" if default is None or callable(default) or isinstance(default, bool) else f"`{default}`"
        text = _plain(getattr(parameter, "help", None) or "").replace("|", "\\|")
        rows.append(f"| {names}{metavar} | {text} | {shown} |")
    return "\n".join(rows)


def _plain(text: str) -> str:
    """Return a help text as Markdown: an example becomes code."""
    return re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", text)


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
