"""Groups as plain data: members, who writes, what lies between, who reads; streams and what stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slimilar.graph.grouping import find_groups
from slimilar.graph.groups import FIXED, Grouping
from slimilar.graph.labels import classes
from slimilar.graph.tracing import trace

X = torch.zeros(1, 3, 8, 8)


def grouped(net: nn.Module, residual: str = "inner") -> Grouping:
    return find_groups(trace(net, X), residual)


def test_a_plain_chain():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    (group,) = grouped(net).groups
    assert (group.name, group.width, group.producers, group.residual) == ("0", 4, ("0",), False)
    assert {(m.tensor, m.axis) for m in group.members} == {
        ("0.weight", 0), ("0.bias", 0), ("1.weight", 0), ("1.bias", 0), ("1.running_mean", 0), ("1.running_var", 0),
        ("3.weight", 1),
    }  # fmt: skip
    assert all(m.units.tolist() == [0, 1, 2, 3] for m in group.members)
    assert group.through == (("aten.native_batch_norm", "1"), ("aten.relu", "2"))
    (norm,) = group.batch_norms
    assert (norm.module, norm.weight, norm.running_var, norm.positions.tolist()) == (
        "1", "1.weight", "1.running_var", [[0], [1], [2], [3]],
    )  # fmt: skip
    (consumer,) = group.consumers
    assert (consumer.module, consumer.weight, consumer.weight_axis, consumer.axis) == ("3", "3.weight", 1, 1)
    assert consumer.weight_index.tolist() == [0, 1, 2, 3]
    assert [f.reason for f in grouped(net).frozen] == ["model output"]


def test_flattening_gives_a_unit_several_columns():
    net = nn.Sequential(nn.Conv2d(3, 4, 7), nn.Flatten(), nn.Linear(16, 2))
    (group,) = grouped(net).groups
    (consumer,) = group.consumers
    assert consumer.units.tolist() == [u for u in range(4) for _ in range(4)]
    assert consumer.weight_index.tolist() == list(range(16))


class Cat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1), nn.Conv2d(6, 5, 1)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.norm(torch.cat([self.a(x), self.b(x)], 1))).mean((1, 2, 3))


def test_concatenation_keeps_groups_apart():
    first, second = grouped(Cat()).groups
    assert (first.width, second.width) == (4, 2)
    assert first.consumers[0].units.tolist() == [0, 1, 2, 3, FIXED, FIXED]
    assert second.consumers[0].units.tolist() == [FIXED] * 4 + [0, 1]
    assert second.batch_norms[0].positions.tolist() == [[4], [5]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = (
            nn.Conv2d(i, o, 1) for i, o in ((3, 4), (4, 6), (6, 4), (4, 2))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.b(self.a(x)))


def test_streams():
    inner = grouped(Residual())
    assert [g.name for g in inner.groups] == ["a"]
    assert ("stem", 'residual stream (pruned in residual mode "joint")') in {
        (f.name, f.reason) for f in inner.frozen
    }
    joint = grouped(Residual(), "joint")
    stream, block = joint.groups
    assert (stream.residual, stream.producers, block.residual) == (True, ("stem", "b"), False)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(nn.functional.pad(self.a(x), (0, 0, 0, 0, 1, 1)) + self.b(x))


def test_channels_that_meet_padding_stay():
    (group,) = grouped(Padded(), "joint").groups
    assert group.width == 6
    assert sorted(group.fixed.values()) == [
        "meets constant padding",
        "meets constant padding",
        "the last of its layer",
    ]


@pytest.mark.parametrize(("groups", "width"), [(4, 4), (2, 4)])
def test_grouped_convolutions(groups, width):
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=groups), nn.Conv2d(8, 2, 1))
    assert [g.width for g in grouped(net).groups] == ([width] if groups == 4 else [width, width])


def test_units_are_numbered_over_all_groups():
    found = grouped(Cat())
    assert (found.offsets, found.unit_count) == ((0, 4), 6)
    assert set(np.unique(found.unit_of)) == {FIXED, 0, 1, 2, 3, 4, 5}


def test_classes_are_numbered_by_their_first_atom():
    assert classes(5, [np.array([[4, 1], [2, 3]])]).tolist() == [0, 1, 2, 1, 2]
    assert classes(0, []).tolist() == []


def test_layers_without_batch_norm_have_groups_too():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    (group,) = find_groups(trace(net, torch.zeros(1, 3)), "inner").groups
    assert (group.width, group.batch_norms) == (5, ())
