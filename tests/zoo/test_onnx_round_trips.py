"""Torchvision's classifiers as ONNX: exported, read back, pruned, written, and run. All of them, in minutes."""

from __future__ import annotations

import pytest
from _onnx.round_trip import PRUNED, names, round_trip

FAST = ["squeezenet1_1", "shufflenet_v2_x0_5"]


@pytest.mark.parametrize("name", FAST)
def test_a_sample(name, tmp_path):
    assert round_trip(name, tmp_path) == PRUNED


@pytest.mark.slow
def test_all_classifiers(tmp_path):
    found = {name: round_trip(name, tmp_path) for name in names()}
    exported = {name: what for name, what in found.items() if not what.startswith("not exported")}
    assert sum(what == PRUNED for what in exported.values()) >= 0.8 * len(exported), exported
    assert not [name for name, what in exported.items() if "resnet" in name and what != PRUNED]
