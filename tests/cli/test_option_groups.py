"""Options that belong together: declared once, as one dataclass, and given to commands one by one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from slimilar.cli import app
from slimilar.cli.option_groups import ungrouped


@dataclass(frozen=True)
class Inner:
    skip: Annotated[tuple[str, ...], typer.Option(help="Leave this out.", metavar="NAME")] = ()


@dataclass(frozen=True)
class Outer:
    fast: Annotated[bool, typer.Option("--fast")] = False
    count: Annotated[int, typer.Option("--count", "-n", min=1)] = 3
    inner: Inner = Inner()


FOUND: list[tuple[Any, ...]] = []


def work(
    name: Annotated[str, typer.Argument()],
    *,
    some: Outer = Outer(count=7),  # noqa: B008 (frozen)
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("here"),
) -> None:
    """Do it."""
    FOUND.append((name, some, out))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x"], ("x", Outer(count=7), Path("here"))),
        (["x", "-n", "2", "--fast"], ("x", Outer(True, 2), Path("here"))),
        (["x", "--skip", "a", "--skip=b"], ("x", Outer(count=7, inner=Inner(("a", "b"))), Path("here"))),
        (["x", "-o", "there"], ("x", Outer(count=7), Path("there"))),
    ],
)
def test_a_command_gets_its_groups_back(words, expected):
    program = typer.Typer()
    program.command()(ungrouped(work))
    FOUND.clear()
    assert CliRunner().invoke(program, words).exit_code == 0
    assert [expected] == FOUND


def test_options_keep_their_order_and_checks():
    assert list(inspect.signature(ungrouped(work)).parameters) == ["name", "fast", "count", "skip", "out"]
    program = typer.Typer()
    program.command()(ungrouped(work))
    assert CliRunner().invoke(program, ["x", "--count", "0"]).exit_code == 2


def test_two_groups_with_one_option_are_refused():
    def twice(one: Inner, other: Inner) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'skip'"):
        ungrouped(twice)


@pytest.mark.parametrize(("command", "default"), [("analyze", "similarity"), ("prune", "auto")])
def test_a_command_may_have_defaults_of_its_own(command, default):
    root: Any = typer.main.get_command(app)
    assert {p.name: p.default for p in root.commands[command].params}["criterion"] == default
