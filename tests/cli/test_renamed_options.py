"""Earlier names of options keep working, and the help does not show them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from slimilar.cli import app
from slimilar.cli.renamed_options import RENAMED, current


@pytest.mark.parametrize("old", RENAMED)
def test_earlier_names_stand_for_the_present_ones(old):
    assert current(old) == RENAMED[old]
    assert current(f"{old}=3") == f"{RENAMED[old]}=3"
    assert current(old.removeprefix("--")) == old.removeprefix("--"), "values are left alone"


@pytest.mark.parametrize("command", ["prune", "compare"])
def test_the_help_shows_the_present_names_alone(command):
    shown = CliRunner().invoke(app, [command, "--help"]).output
    assert "--reconstruction" in shown
    assert not [old for old in RENAMED if old in shown]


@pytest.mark.parametrize(
    "words", [["--substitute", "merge"], ["--substitute=merge"], ["--reconstruction", "merge"]]
)
def test_prune_takes_both(words, tmp_path):
    command = ["prune", "slimilar:demo", "--threshold", "0.1", *words, "-o", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["reconstruction"] == "merge"


def test_compare_takes_both(tmp_path):
    words = [
        "compare",
        "slimilar:demo",
        "--criteria",
        "random",
        "--epochs",
        "0",
        "--substitute",
        "none",
        "--threads",
        "1",
    ]
    words += [
        "--pictures",
        "16",
        "--train-pictures",
        "16",
        "--test-pictures",
        "20",
        "-o",
        str(tmp_path),
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["baseline"]["images"] == 20
    assert "--test-images 20" in found["header"]["command"]
