"""`slimilar compare`: mistakes, kills, and the files that it writes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from helpers.comparing import plain
from slimilar.cli import app
from slimilar.cli.comparison_options import SubjectOptions
from slimilar.cli.comparison_source import ComparisonSource
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.comparison import load
from slimilar.criteria import available, facts
from slimilar.data import demo_images

PROGRAM = [sys.executable, "-m", "slimilar"]
ON_DEMO = [
    "compare", "slimilar:demo", "--data", "demo", "--criteria", "magnitude-l1,random", "--flops", "0.6",
    "--epochs", "1", "--images", "16", "--train-images", "16", "--test-images", "20", "--threads", "1",
]  # fmt: skip


# --- what is asked ------------------------------------------------------------------------------------------------


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout


def wait_for(condition, process: subprocess.Popen[bytes], seconds: float = 500) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The folder of a comparison on the shipped network, by the command, in one go."""
    folder = tmp_path_factory.mktemp("demo")
    run(*ON_DEMO, "-o", folder, "-q")
    return folder


@pytest.mark.timeout(600)  # seconds on a machine that has nothing else to do
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_killed_it_goes_on_and_ends_the_same(demo, tmp_path, jobs):
    """The real program, on the shipped network and images, killed by force in the middle of a training."""
    folder, rows = tmp_path / "killed", tmp_path / "killed" / "rows.jsonl"
    process = subprocess.Popen(
        [*PROGRAM, *ON_DEMO, "--jobs", jobs, "-o", str(folder), "-q"], start_new_session=True
    )
    try:
        wait_for(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 1, process)
        if jobs == "1":
            wait_for(lambda: any((folder / "runs").glob("random*/log.jsonl")), process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    written = rows.read_bytes().count(b"\n")
    goes_on = CliRunner().invoke(app, [*ON_DEMO, "-o", str(folder)])
    assert goes_on.exit_code == 0, goes_on.output
    assert f"{written} of 2 rows are there already" in goes_on.stderr
    assert plain(load(folder)) == plain(load(demo))


@pytest.mark.timeout(600)
def test_two_processes_make_the_same_rows_until_ctrl_c(demo, tmp_path):
    """The real program with two processes at work, stopped as a terminal does it: all of them at once."""
    process = subprocess.Popen(
        [*PROGRAM, *ON_DEMO, "--jobs", "2", "--seed", "0,1,2,3", "-o", str(tmp_path)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    alone = plain(load(demo))  # those of seed 0, which come first
    try:
        wait_for(lambda: rows.exists() and alone.keys() <= plain(load(tmp_path)).keys(), process)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert errors.decode().strip().endswith("slimilar: stopped")
    assert alone.items() <= plain(load(tmp_path)).items()


def test_the_command_writes_table_data_and_curves(tmp_path):
    words = [*ON_DEMO, "--substitute", "own,mean", "--epochs", "0", "-o", tmp_path]
    answer = json.loads(run(*words, "--json"))
    assert len(answer["rows"]) == 4
    names = {Path(file).name for file in answer["files"]}
    assert names == {"comparison.md", "comparison.csv", "comparison.png", "comparison.svg"}
    text = (tmp_path / "comparison.md").read_text()
    assert "Command: `slimilar compare slimilar:demo --data demo " in text
    assert " --criteria magnitude-l1,random --flops 0.6 " in text
    assert "| magnitude-l1 | none (own) |" in text
    with open(tmp_path / "comparison.csv") as file:
        assert [row["criterion"] for row in csv.DictReader(file)] == ["magnitude-l1"] * 2 + ["random"] * 2
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "comparison.svg").read_text()
    assert "all with mean reconstruction, right after pruning" in svg
    assert "after fine-tuning" not in svg
    shown = run(*words)
    assert "FLOPs budget 0.6" in shown
    assert (tmp_path / "comparison.svg").read_text() == svg


def _source(**images: int) -> ComparisonSource:
    return ComparisonSource("slimilar:demo", ModelOptions(), Placement(), SubjectOptions(**images))


def test_settings_are_chosen_on_training_images_kept_out():
    found, every = _source(held_out=56)(), demo_images("train")
    assert (len(found.train), len(found.test)) == (200, 56)
    both = torch.cat([found.train.images, found.test.images]).flatten(1)
    assert torch.equal(both.unique(dim=0), every.images.flatten(1).unique(dim=0))
    assert len(set(found.test.labels.tolist())) == 10
    some = _source(train_images=100, test_images=30, held_out=56)()
    assert (len(some.train), len(some.test)) == (100, 30)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "one"], "--seed must be whole numbers"),
        (["--criteria", ","], "--criteria must name at least one"),
        (["--engine", "slurm"], "engine must be one of"),
        (["--recipe", "slow"], "recipe must be one of"),
        (["--held-out", "255"], "must leave some of the 256 training images"),
        (["--flops", "0.5,7"], "flops must be a share from 0 to 1"),
        (["--flops", "7G"], "flops must be at most the 89.28 M of the network"),
    ],
)
def test_misuse_is_a_sentence(tmp_path, words, message):
    result = CliRunner().invoke(app, [*ON_DEMO, *words, "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert not (tmp_path / "rows.jsonl").exists()


def test_where_nothing_comes_about_the_command_fails(demo, tmp_path):
    """Not where some rows fail: the table says so, and the others are good."""
    words = [*ON_DEMO, "--epochs", "0", "-o", str(tmp_path)]
    none = CliRunner().invoke(app, [*words, "--flops", "0.0005", "--json"])
    assert none.exit_code == 1
    said = " ".join(none.stderr.split())
    assert said.startswith("slimilar: none of the 2 requested networks could be pruned; the first failure")
    assert "magnitude-l1 at 0.0005: flops must be at least" in said
    assert 'residual="joint"' in said, "rows keep the library's words"
    assert [row["error"] is None for row in json.loads(none.stdout)["rows"]] == [False, False]
    some = CliRunner().invoke(app, [*words, "--flops", "0.0005,0.6", "--criteria", "random"])
    assert some.exit_code == 0, some.output
    assert "random, none, 0.0005, seed 0: flops must be at least" in " ".join(some.stdout.split())


def test_criteria_are_listed_with_what_they_need():
    shown = run("criteria")
    for name in available():
        assert re.search(rf"^ {name} .* {facts(name).needs} ", shown, re.MULTILINE), name
    assert json.loads(run("criteria", "--json"))["span"]["needs"] == "images"


# --- drawing ------------------------------------------------------------------------------------------------------
