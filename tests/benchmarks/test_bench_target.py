"""`make bench` gives each benchmark what it needs, and names those whose needs are not met."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.paths import BENCHMARKS, ROOT


def listed(*words: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench.py"), "--list", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines())


def test_every_program_is_there_and_no_library():
    programs = {f.name for f in BENCHMARKS.glob("[a-z]*.py") if 'if __name__ == "__main__"' in f.read_text()}
    assert set(listed()) == programs
    assert "rivals.py" not in programs


def test_what_needs_data_runs_only_with_it():
    without, given = listed(), listed("--data", "folder")
    assert without["accuracy.py"] == "left out, needs --data"
    assert given["accuracy.py"] == "--data folder"
    assert without["clustering.py"] == given["clustering.py"] == "as it is"


@pytest.mark.parametrize("name", sorted(listed()))
def test_options_that_are_needed_are_declared(name):
    """A benchmark whose usage shows an option outside brackets declares it as required, so that it can be left out."""
    usage = next(
        line for line in (BENCHMARKS / name).read_text().splitlines() if f"python benchmarks/{name}" in line
    )
    shown = {word for word in usage.split("[")[0].split(">")[0].split() if word.startswith("--")}
    if shown - {"--all", "--tasks"}:
        assert listed()[name] == f"left out, needs {', '.join(sorted(shown))}"
