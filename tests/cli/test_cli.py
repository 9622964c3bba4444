"""The command line: the real program where it matters, typer's runner where that is quicker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import slimilar
from helpers.commands import run
from slimilar.cli import app

PROGRAM = [sys.executable, "-m", "slimilar"]
COMMANDS = [
    "demo",
    "analyze",
    "explore",
    "prune",
    "train",
    "finetune",
    "evaluate",
    "bench",
    "compare",
    "criteria",
    "reproduce",
    "export",
    "inspect",
]
SMALL = "slimilar:resnet20,width=0.25"


def test_help_is_a_table_of_contents_and_needs_no_torch():
    code = "import sys; from slimilar.cli import main; sys.argv = ['slimilar', '--help']\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.endswith("False False\n")
    found = re.findall(r"│ ([a-z]+)\s+[A-Z]", done.stdout)
    assert [name for name in found if name in COMMANDS] == COMMANDS


def test_help_is_quick():
    """By the processor's clock, because others may be using the machine."""
    before = os.times()
    subprocess.run([*PROGRAM, "--help"], capture_output=True, timeout=120, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 0.9


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_text_has_an_example(command):
    assert f"Example: slimilar {command}" in run(command, "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_json_and_keeps_quiet(command):
    text = run(command, "--help")
    assert "--json" in text
    assert "--quiet" in text


def test_the_version():
    assert run("--version") == f"slimilar {slimilar.__version__}\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["prune", "nonsense", "--flops", "0.5"], 2, "a model must be given as torchvision:NAME"),
        (
            ["prune", SMALL],
            2,
            "exactly one of --threshold, --flops, --macs, --params, --latency, --ratio, --quantile must be given",
        ),
        (["prune", SMALL, "-t", "0.1", "--flops", "1"], 2, "got --threshold and --flops"),
        (["prune", SMALL, "-t", "0.1"], 1, "Does the model lack its trained weights? Pass --weights FILE"),
        (["prune", "slimilar:demo", "-t", "7"], 2, "--threshold must be a number from 0 to 1, got 7.0"),
        (
            ["prune", "slimilar:demo", "-t", "0", "--layer", "x"],
            2,
            "--layer must look like NAME=0.25, got 'x'",
        ),
        (
            ["prune", "slimilar:demo", "-t", "0", "--layer", "features.conv11=0"],
            2,
            "did you mean features.conv",
        ),
        (["prune", "slimilar:demo", "--flops", "0.0001"], 1, "the smallest this plan reaches"),
        (["prune", "slimilar:demo", "--flops", "0.5", "--out", __file__], 2, "--out must be a folder"),
        (["prune", "slimilar:demo", "--flops", "0.5", "--calibrate", "/nowhere"], 1, "data must be"),
        (["prune", "slimilar:demo", "--latency", "soon"], 2, "--latency must be a share"),
        (["prune", "slimilar:demo", "-t", "0.2", "--linkage", "ward"], 2, "linkage"),
        (["analyze", "slimilar:vgg61"], 2, "did you mean vgg16?"),
        (
            ["analyze", "slimilar:vgg16", "--input", "big"],
            2,
            "input must be a shape such as 3x224x224, got 'big'",
        ),
        (["analyze", "slimilar:vgg16", "--input", "3x99999x99999"], 2, "input must have 1 to"),
        (["analyze", "slimilar:vgg16", "--weights", "none.pt"], 1, "there is no such file"),
        (["inspect", "none.safetensors"], 1, "there is no such file"),
        (["bench", "slimilar:demo", "--engine", "tpu"], 2, "--engine must be one of pytorch"),
        (["evaluate", "slimilar:demo", "--data", "mnist"], 1, "data must be"),
        (["train", SMALL, "--data", "demo", "--recipe", "quik"], 2, "quick"),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code(words, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    said = " ".join(result.output.split())
    assert message in said
    assert (result.exit_code, said.count("slimilar: ")) == (code, 1)
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_the_real_program_keeps_to_it(program):
    done = program("analyze", "slimilar:vgg61")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slimilar: slimilar model must be one of the")
    assert program("analyze", "--no-such-option").returncode == 2
    traced = program("analyze", "slimilar:vgg61", "--debug")
    assert traced.returncode == 1
    assert "Traceback" in traced.stderr
    assert "InvalidInput" in traced.stderr


def test_an_error_of_ours_asks_for_a_report(monkeypatch):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("slimilar.cli.model_options.open_model", broken)
    said = run("analyze", SMALL, code=1)
    assert "ZeroDivisionError: oh" in said
    assert "--debug" in said


def test_shells_complete_commands():
    environment = {
        **os.environ,
        "_SLIMILAR_COMPLETE": "complete_bash",
        "COMP_WORDS": "slimilar ex",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("slimilar")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["explore", "export"]


def test_ctrl_c_leaves_nothing(tmp_path):
    started = subprocess.Popen(
        [*PROGRAM, "demo", "-o", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests that run in the background ignore Ctrl-C, and so would their children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert started.stdout is not None
    for line in started.stdout:
        if "Accuracy is measured" in line:
            break
    time.sleep(0.5)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert errors.strip() == "slimilar: stopped"
    assert not list(tmp_path.rglob("*.*"))


def test_ctrl_c_in_code_that_python_makes_ends_with_its_code(tmp_path):
    """Dataclasses are made by exec(): after an interrupt there, CPython ends by the signal, unless told otherwise."""
    (tmp_path / "stopped.py").write_text(
        "import sys\nfrom slimilar.cli.error_handling import report\n"
        "report(KeyboardInterrupt())\n"  # imports what printing needs, which would hide it
        "try:\n    exec('raise KeyboardInterrupt')\n"
        "except KeyboardInterrupt as stop:\n    sys.exit(report(stop))\n"
    )
    done = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split("\n")[1]) == (130, "slimilar: stopped")
