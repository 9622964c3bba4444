"""A hundred architectures in one process: the same answers in any order and in threads, and nothing kept."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from _zoo.catalogue import Architecture, catalogue, chosen
from _zoo.worker import prepared, to_target
from torch import nn

from helpers.paths import BENCHMARKS
from slimilar import analyze
from slimilar.pipeline import apply

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the models' own warnings
RESULTS = BENCHMARKS / "results"
ENTRIES = chosen(catalogue(RESULTS / "zoo-catalogue.json"), everything=False)[:100]  # the smallest
LEAK = 100 * 2**20  # one megabyte for each architecture; a model or its trace is more

_building = threading.Lock()  # random weights come from one generator of the process


def pruned(entry: Architecture, seen: list[weakref.ref[nn.Module]] | None = None) -> str:
    """Prune one architecture; return a digest of every tensor of the smaller model."""
    with _building:
        torch.manual_seed(0)
        model, example = prepared(entry)
    plan = analyze(model, example)
    if not plan.groups:
        plan = analyze(model, example, residual="joint", criterion="magnitude-l1")
    small = apply(model, example, plan, to_target(plan), reconstruction="none").model
    if seen is not None:
        seen += [weakref.ref(model), weakref.ref(small)]
    digest = hashlib.sha256()
    for name, tensor in small.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def resident() -> int:
    """Return the bytes that the process holds once everything free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    return {entry.key: pruned(entry) for entry in ENTRIES}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory in use")
def test_the_way_back_gives_the_same_and_keeps_nothing(alone):
    before, seen = resident(), []
    assert {entry.key: pruned(entry, seen) for entry in reversed(ENTRIES)} == alone
    assert resident() - before < LEAK
    assert len(seen) == 2 * len(ENTRIES)
    assert not any(ref() is not None for ref in seen)


def test_threads_give_the_same(alone):
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip((e.key for e in ENTRIES), pool.map(pruned, ENTRIES), strict=True))
    assert found == alone
