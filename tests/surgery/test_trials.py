"""Widths that the code knows are found by analysis, not by a failed pruning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.surgery.probe import find_structure
from slimilar.surgery.trials import trials

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Shuffled(nn.Module):
    """A channel shuffle with its numbers in the code: what is left to remove are two halves, and these neither."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3), nn.Conv2d(32, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        n, _, h, w = x.shape
        x = x.view(n, 2, 8, h, w).transpose(1, 2).reshape(n, -1, h, w)
        return self.c(self.b(x))


class Split(nn.Module):
    """A split by numbers in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(2, 3, 1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.split(self.a(x), (2, 6), dim=1)
        return self.b(a), self.c(b)


class ShapedLike(nn.Module):
    """A layer whose output takes the shape of the input beside another layer's: 11 = 3 + 8."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.p, self.o = nn.Conv2d(3, 8, 3, padding=1), nn.Conv1d(11, 11, 1), nn.Conv2d(11, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x, self.c(x).relu()], 1)
        return self.o(self.p(y.flatten(2)).view_as(y))


class ShapedLikeTwo(nn.Module):
    """The same with two layers side by side, of 24 and 8 channels, and one of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.s, self.a, self.b = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 24, 1), nn.Conv2d(32, 8, 1)
        self.p, self.o = nn.Conv1d(32, 32, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        s = self.s(x).relu()
        y = torch.cat([self.a(s), self.b(s)], 1).relu()
        return self.o(self.p(y.flatten(2)).view_as(y))


@pytest.mark.parametrize(
    ("kind", "fixed", "free"),
    [
        (Shuffled, {"a"}, {"b"}),
        (Split, {"a"}, set()),
        (ShapedLike, {"c", "p"}, set()),
        (ShapedLikeTwo, {"a", "b", "p"}, {"s"}),
    ],
)
def test_analysis_finds_widths_that_the_code_knows(
    kind: type[nn.Module], fixed: set[str], free: set[str]
) -> None:
    net = kind().eval()
    plan = slimilar.analyze(net, X, criterion="magnitude-l2")
    assert {g.name for g in plan.groups} == free
    assert fixed <= {f.name for f in plan.frozen}
    if free:
        slimilar.prune(net, X, ratio=0.5, substitute="none", criterion="magnitude-l2")


def removed_by(model: nn.Module) -> list[dict[str, int]]:
    """Return for every trial how many units each group loses, those that lose none left out."""
    structure = find_structure(model, X)
    grouping = structure.grouping
    found: list[dict[str, int]] = []
    for kept in trials(model, structure):
        parts = np.split(~kept, grouping.offsets[1:])
        found.append({g.name: int(p.sum()) for g, p in zip(grouping.groups, parts, strict=True) if p.any()})
    return found


def test_layers_that_no_code_looks_at_are_tried_once() -> None:
    layers: list[Any] = [nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 2, 1)]
    (trial,) = removed_by(nn.Sequential(*layers))
    assert trial["0"] != trial["1"]


def test_narrow_groups_are_tried_apart() -> None:
    layers: list[Any] = [nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 2, 1)]
    found = removed_by(nn.Sequential(*layers))
    assert {"0": 1} in found
    assert {"1": 1} in found


def test_a_number_that_follows_the_width_is_found_for_two_channels() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x * x.shape[1] ** -0.5)

    assert find_structure(Scaled(), X).grouping.groups == ()
