"""Run commands of the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from slimilar.cli import app


def run(*words: object, code: int = 0) -> str:
    """Run a command and return what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def answer(*words: object) -> Any:
    """Run a command with --json and return what it answered."""
    result = CliRunner().invoke(app, [*(str(word) for word in words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
