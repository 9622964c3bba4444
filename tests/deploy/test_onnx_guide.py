"""The guide to ONNX files runs as it is printed."""

from __future__ import annotations

import re

import pytest
import torch

from helpers.onnx_models import classifier, saved
from helpers.paths import ROOT
from slimilar.cli import app

TEXT = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(classifier(), tmp_path / "model.onnx")
    made = classifier()
    for axis in (2, 3):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    saved(made, tmp_path / "open_size.onnx")


def test_the_snippets_run(tmp_path):
    found: dict[str, object] = {}
    exec(compile(SNIPPETS[0], "docs/onnx.md", "exec"), found)
    assert (tmp_path / "small.onnx").is_file()
    exec(compile(SNIPPETS[1], "docs/onnx.md", "exec"), found)
    assert isinstance(found["model"], torch.nn.Module)
    assert found["model"].example.shape == (1, 3, 64, 96)
    assert len(SNIPPETS) == 2


def test_the_commands_exist():
    from typer.main import get_command

    commands = re.findall(r"^slimilar (.*?)(?:  +#.*)?$", TEXT, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["export", "prune", "bench"]
    for command in commands:
        name, *words = command.split()
        get_command(app).commands[name].make_context(name, words)
