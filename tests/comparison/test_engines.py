"""Every engine ends with the same rows: one process, several, a cluster."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace

import pytest

from helpers.comparing import TERMS, plain, subject
from helpers.paths import TESTS
from slimilar.comparison import compare
from slimilar.errors import InvalidInput

# --- what a row says ----------------------------------------------------------------------------------------------


@pytest.mark.slow  # the fast tests have it on the command line
def test_two_processes_end_with_the_same_rows(whole, tmp_path):
    terms = replace(TERMS, criteria=("similarity", "magnitude-l1"), flops=("0.5",))
    found = plain(compare(subject, terms, tmp_path, jobs=2, threads=1))
    assert len(found) == 4
    assert found.items() <= plain(whole[1]).items()


@pytest.mark.engines
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-engines")
@pytest.mark.filterwarnings("ignore")  # of Ray itself, while it starts and stops
def test_a_cluster_ends_with_the_same_rows(whole, tmp_path, monkeypatch):
    places = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    terms = replace(TERMS, criteria=("magnitude-l1",), flops=("0.5",))
    found = plain(compare(subject, terms, tmp_path, jobs=2, threads=1, engine="ray"))
    assert len(found) == 2
    assert found.items() <= plain(whole[1]).items()


def test_without_ray_one_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"needs Ray; run: pip install 'slimilar\[ray\]'"):
        compare(subject, TERMS, tmp_path, engine="ray")
