"""What a result says about its making."""

from __future__ import annotations

import re
import subprocess

import torch

from slimilar.utils.provenance import commit, hardware, header


def test_the_commit_is_that_of_the_code(tmp_path):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )

    assert commit(tmp_path, ["src"]) is None
    (tmp_path / "results").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    for name, file in (("code", "src/a.py"), ("result", "results/a.json")):
        (tmp_path / file).write_text("1")
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", name)
    first = git("rev-parse", "--short", "HEAD~1").stdout.strip()
    assert commit(tmp_path, ["src"]) == first
    (tmp_path / "src" / "a.py").write_text("2")
    assert commit(tmp_path, ["src"]) == f"{first} + changes"


def test_a_header_has_all_that_a_reader_needs():
    found = header("python a.py", 3, "abc")
    assert (found["command"], found["seed"], found["commit"]) == ("python a.py", 3, "abc")
    assert found["versions"]["torch"] == torch.__version__
    assert found["hardware"] == hardware()
    assert f"{torch.get_num_threads()} PyTorch threads" in hardware()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", found["started"])
