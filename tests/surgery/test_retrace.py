"""A smaller copy is run with the original's labels: it passes where they arrive as before, and fails where not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slimilar.graph.assumptions import Assumptions
from slimilar.graph.grouping import find_groups
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.surgery.retrace import Mismatch, retrace

X = torch.zeros(1, 3, 8, 8)


class Net(nn.Module):
    """A convolution, the code in question, and a consumer."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.code, self.b = nn.Conv2d(3, 8, 3), code, nn.Conv2d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self.a(x)))


def check(code: Callable[[Tensor], Tensor], removed: int = 1) -> None:
    """Remove the first units of `a`, without any probing, and retrace."""
    net = Net(code)
    found = trace(net, X)
    structure = Structure(found, find_groups(found, "inner"), Assumptions())
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    kept[:removed] = False
    retrace(net, X, structure, kept)


@pytest.mark.parametrize(
    "code", [torch.relu, lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), lambda x: x.flip(1)]
)
def test_code_that_follows_the_width_passes(code: Callable[[Tensor], Tensor]) -> None:
    check(code)


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        (lambda x: torch.cat([x[:, 4:], x[:, :4]], 1), "channels arrive elsewhere|other"),
        (lambda x: x * x.shape[1], "a number in the code follows the width"),
        (lambda x: x if x.shape[1] == 8 else x.relu(), "other operators run"),
        (lambda x: x.view(1, 8, 6, 6), "invalid"),
    ],
)
def test_code_that_does_not_is_found_with_what_happened(code: Callable[[Tensor], Tensor], fact: str) -> None:
    with pytest.raises(Mismatch, match=fact):
        check(code)


def test_the_mismatch_names_the_operator() -> None:
    net = Net(lambda x: x.relu() * x.shape[1])
    ops = [op.name for op in trace(net, X).ops]
    with pytest.raises(Mismatch) as caught:
        check(net.code)
    assert ops[caught.value.op] == "aten.mul"
