"""Parts that run only in training: found, merged into the trace, or named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from slimilar import analyze
from slimilar.graph import training_only
from slimilar.graph.reasons import FreezeKind
from slimilar.graph.tracing import trace

X = torch.zeros(1, 3, 8, 8)


class Auxiliary(nn.Module):
    """A classifier beside the network, for training; `kernel` may be too large for the example."""

    def __init__(self, kernel: int = 1) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)
        self.aux = nn.Sequential(nn.Conv2d(6, 4, kernel), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.a(x)
        return (self.b(y), self.aux(y)) if self.training else self.b(y)


def test_only_the_modules_around_unused_parameters_are_switched() -> None:
    model = nn.Sequential(Auxiliary(), nn.Dropout()).eval()
    found = trace(nn.Sequential(Auxiliary()), X)
    unused = replace(found, axes=tuple(a for a in found.axes if ".aux." not in a.tensor))
    assert training_only.enable(model, unused)
    assert [path for path, m in model.named_modules() if m.training] == ["", "0", "0.aux"]
    assert not training_only.enable(model, found)


def test_what_the_part_reads_is_tied_to_what_the_network_writes() -> None:
    found = trace(Auxiliary(), X)
    first = {(a.tensor, a.axis): a.first for a in found.axes}
    classes = found.together
    writes = classes[first["a.weight", 0] : first["a.weight", 0] + 6]
    reads = classes[first["aux.0.weight", 1] : first["aux.0.weight", 1] + 6]
    assert np.array_equal(writes, reads)
    assert found.not_run == ()


def test_what_cannot_run_is_named_with_its_width_and_its_error() -> None:
    (found,) = trace(Auxiliary(kernel=9), X).not_run
    assert (found.module, found.width) == ("aux", 6)
    assert "kernel" in found.error.lower()


class Flagged(nn.Module):
    """A branch that runs only if a flag is set."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.extra = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), nn.Conv2d(6, 5, 1)
        self.flag = False

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.a(x)
        return (self.b(y), self.extra(y)) if self.flag else self.b(y)


def test_what_runs_only_under_a_flag_is_listed() -> None:
    frozen = {f.name: f for f in analyze(Flagged(), X, criterion="magnitude-l2").frozen}
    assert frozen["extra"].kind is FreezeKind.NOT_RUN
    assert frozen["extra"].width == 5
    assert "analyse with an input that runs it" in frozen["extra"].reason
    used = Flagged()
    used.flag = True
    assert "a" in [g.name for g in analyze(used, X, criterion="magnitude-l2").groups]
    assert FreezeKind.NOT_RUN not in {f.kind for f in analyze(used, X, criterion="magnitude-l2").frozen}
