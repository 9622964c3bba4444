"""The README keeps its word: its example runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

import slimilar
from helpers.paths import DOCS, ROOT
from slimilar.cli import app
from slimilar.data import demo_images

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 110


def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    """With fewer images, which changes how good the result is and nothing else."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slimilar.data.demo_images", lambda split: demo_images(split).first(16))
    found: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), found)
    assert re.search(r"FLOPs: 89\.28 M -> 4[34]\.", capsys.readouterr().out)
    assert type(found["small"]) is type(found["model"])
    assert isinstance(found["result"], slimilar.Result)


def test_the_quick_start_of_the_site_is_the_same():
    """So it runs too: docs/index.md."""
    start = (DOCS / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"```python\n(.*?)```", start, re.DOTALL) == re.findall(
        r"```python\n(.*?)```", TEXT, re.DOTALL
    )


def commands() -> list[str]:
    lines = re.findall(r"^slimilar .*$", TEXT.replace("\\\n", ""), re.MULTILINE)
    return [*re.findall(r"`(slimilar [^`]+)`", TEXT), *lines]


def test_there_are_commands_to_test():
    assert len(commands()) > 10


@pytest.mark.parametrize("line", commands())
def test_every_command_and_option_is_known(line):
    words = [word for word in shlex.split(line.replace("...", "")) if word.startswith("-")]
    command = shlex.split(line)[1]
    text = CliRunner().invoke(app, ["--help" if command.startswith("-") else command, "--help"]).output
    assert "Usage" in text
    for word in words:
        assert word in text


def test_every_command_is_in_the_table():
    told = set(re.findall(r"`slimilar ([a-z]+)", TEXT.split("## On the command line")[1].split("## ")[0]))
    assert told == {command.name or command.callback.__name__ for command in app.registered_commands}


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", TEXT.split("## How it works")[0])) - {"up"} <= targets
