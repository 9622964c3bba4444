"""Memory of large tensors is kept inside the context, and given back behind it; measured in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from slimilar.utils.allocator import _glibc

_PROGRAM = """
import json, resource, sys
import torch
from slimilar.utils.allocator import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(16 * 2**20)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20

outside, before = faults(), held()
with freed_memory_kept():
    faults()  # the first time it has to be asked for
    with freed_memory_kept():
        pass
    inside, kept = faults(), held() - before
print(json.dumps({"outside": outside, "inside": inside, "kept": kept, "after": held() - before}))
"""
pytestmark = pytest.mark.skipif(_glibc() is None, reason="only glibc has these settings")


def _measured(**environment: str) -> dict[str, int]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=clean | environment
    )
    found: dict[str, int] = json.loads(ran.stdout)
    return found


def test_freed_memory_is_kept_inside_and_given_back_behind():
    found = _measured()
    assert found["inside"] * 4 < found["outside"]  # one of eight may lie elsewhere
    assert found["kept"] >= 60
    assert found["after"] < 30


def test_settings_of_the_environment_stay():
    found = _measured(MALLOC_MMAP_THRESHOLD_="65536")
    assert found["inside"] * 2 > found["outside"]
