"""Remove some channels of every group, and compare with the masked original and with the cost said before."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

import slimilar
from slimilar.planning.cost import cost_model
from slimilar.surgery.probe import find_structure
from slimilar.surgery.rewrite import operate, surgery
from slimilar.surgery.verify import verify


def check_exact(model: nn.Module, x: Any, names: set[str]) -> float:
    """Remove a third of each group, the named ones among them; return the largest relative error."""
    structure = find_structure(model, x)
    grouping = structure.grouping
    assert {g.name for g in grouping.groups} >= names
    kept = np.ones(grouping.unit_count, np.bool_)
    for start, group in zip(grouping.offsets, grouping.groups, strict=True):
        free = [u for u in range(group.width) if u not in group.fixed]
        kept[[start + u for u in free[: max(1, len(free) // 3)]]] = False
    small = operate(model, surgery(structure.trace, grouping, kept))
    said, found = cost_model(structure.trace, grouping).at(kept), slimilar.count(small, x)
    assert (said.flops, said.macs, said.params) == (found.flops, found.macs, found.params)
    return verify(model, small, x, structure.trace, grouping, kept)
