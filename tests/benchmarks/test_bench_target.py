"""`make bench` gives each benchmark what it needs, and names those whose needs are not met."""

from __future__ import annotations

import re
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
def test_what_is_required_stands_in_the_usage(name):
    """So that it can be given, or the benchmark left out."""
    required = re.findall(r'add_argument\("(--[a-z-]+)"[^)]*required=True', (BENCHMARKS / name).read_text())
    for option in required:
        assert option in listed()[name], f"name {option} in the first line of usage"


def test_several_needs_are_named_together():
    assert listed()["onnx_files.py"].startswith("left out, needs ")
    assert "--wheels" in listed("--data", "folder")["onnx_files.py"]
