"""The message names the group that is at fault, and no sound one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slimilar.errors import VerificationError
from slimilar.graph.assumptions import Assumptions
from slimilar.graph.grouping import find_groups
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.surgery.fault import verify_rewrite
from slimilar.surgery.rewrite import operate, surgery

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """`a` may be left with one pair of channels; the code behind `b` works for eight only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.p, self.q = nn.Linear(4 * 16, 3), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = self.a(x).unflatten(1, (-1, 2)).mean(2)
        v = self.b(x)
        n, _, h, w = v.shape
        v = v.view(n, 2, 4, h, w).transpose(1, 2).reshape(n, -1, h, w)
        return self.p(nn.functional.adaptive_avg_pool2d(u, 4).flatten(1)), self.q(v)


def structure_without_probing(net: nn.Module) -> Structure:
    found = trace(net, X)
    return Structure(found, find_groups(found, "inner"), Assumptions())


def test_the_group_that_does_not_hold_alone_is_named() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    structure = structure_without_probing(net)
    names = [g.name for g in structure.grouping.groups]
    assert names == ["a", "b"]
    kept = np.zeros(structure.grouping.unit_count, np.bool_)
    kept[list(structure.grouping.offsets)] = True  # one unit of each group stays
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    with pytest.raises(VerificationError, match=r"at fault: group b \(shape .* is invalid"):
        verify_rewrite(net, small, X, structure, kept)


def test_what_holds_returns_the_error() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    structure = structure_without_probing(net)
    kept = np.array([True, False, True, False])
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    assert verify_rewrite(net, small, X, structure, kept) < 1e-5
