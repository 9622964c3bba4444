"""What the user's code allows is found by trying: numbers that follow the shape, that modules hold, that are fixed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.networks import randomise
from slimilar import models
from slimilar.surgery.probe import find_structure

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)


class Net(nn.Module):
    """A convolution, the code in question, and a consumer of what comes out."""

    def __init__(self, code, width: int = 12, **held: object) -> None:
        super().__init__()
        self.a, self.code = nn.Conv2d(3, width, 1), code
        for name, value in held.items():
            setattr(self, name, value)
        self.b = nn.Conv2d(code(self, torch.zeros(1, width, 4, 4)).shape[1], 2, 1)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self, self.a(x)))


def width(net: nn.Module) -> int:
    """Return how many units of the first convolution may leave."""
    groups = [g for g in find_structure(net, X, "joint").grouping.groups if "a" in g.producers]
    return sum(g.width - len(g.fixed) for g in groups)


def reasons(net: nn.Module) -> str:
    return "; ".join(f.reason for f in find_structure(net, X, "joint").grouping.frozen if f.name == "a")


def test_places_that_follow_the_shape_tie_channels():
    assert width(Net(lambda self, x: torch.cat(x.chunk(3, 1)[::-1], 1))) == 4
    assert width(Net(lambda self, x: x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :])) == 6
    assert width(Net(lambda self, x: x[:, ::2])) == 6


def test_fixed_places_freeze_channels():
    for code in (
        lambda self, x: torch.cat([x[:, 4:], x[:, :4]], 1),
        lambda self, x: torch.cat(x.split([4, 8], 1)[::-1], 1),
        lambda self, x: torch.cat(x.split(4, 1)[::-1], 1),
        lambda self, x: x[:, [3, 1, 2]],
    ):
        net = Net(code)
        assert width(net) == 0
        assert "fixed positions" in reasons(net)


def test_regrouping_by_a_fixed_number_of_groups():
    shuffle = lambda self, x: x.view(x.shape[0], 3, -1, 8, 8).transpose(1, 2).flatten(1, 2)  # noqa: E731
    net = Net.__new__(Net)
    nn.Module.__init__(net)
    net.a, net.code, net.b = nn.Conv2d(3, 12, 1), shuffle, nn.Conv2d(12, 2, 1)
    assert width(net.double()) == 4


def test_numbers_that_a_module_holds_are_mended():
    net = Net(lambda self, x: torch.cat(x.split(self.sizes, 1)[::-1], 1), sizes=[4, 8])
    small = slimilar.remove_channels(net, X, {"a": [1, 6, 7]})
    assert small.sizes == [3, 6]
    assert net.sizes == [4, 8]
    cut = Net(lambda self, x: torch.cat([x[:, self.n :], x[:, : self.n]], 1), n=5)
    assert slimilar.remove_channels(cut, X, {"a": [1, 11]}).n == 4


def test_a_whole_width_that_a_module_holds_is_mended():
    net = Net(lambda self, x: torch.cat(x.split(self.c // 2, 1)[::-1], 1), c=12)
    assert slimilar.remove_channels(net, X, {"a": [0]}).c == 10


def test_no_part_of_a_split_becomes_empty():
    net = Net(lambda self, x: torch.cat(x.split(self.sizes, 1)[::-1], 1), sizes=[2, 10])
    assert width(net) == 10


def test_numbers_that_follow_the_width_freeze_it():
    assert width(Net(lambda self, x: x * x.shape[1] ** -0.5)) == 0


def test_a_width_that_is_taken_from_another_layer_is_found():
    class Borrowed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.both, self.c = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 12, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.c(self.both(y).view(y.shape[0], 2, y.shape[1], 8, 8).sum(1))

    structure = find_structure(Borrowed().double(), X, "joint")
    assert not structure.grouping.groups


def test_a_module_used_twice_has_one_set_of_channels():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.same, self.c = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.same(self.same(self.a(x)).relu()))

    small = slimilar.remove_channels(Twice().double(), X, {"a": [2]})
    assert (small.same.in_channels, small.same.out_channels, small.c.in_channels) == (5, 5, 5)


def test_functional_use_of_parameters():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 3, 1, 1))
            self.v = nn.Parameter(torch.randn(2, 6))
            self.scale = nn.Parameter(torch.rand(6))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.nn.functional.conv2d(x, self.w) * self.scale.view(1, -1, 1, 1)
            return torch.einsum("bchw,oc->bohw", y.relu(), self.v)

    plan = find_structure(Functional().double(), X, "joint")
    (group,) = plan.grouping.groups
    assert {(m.tensor, m.axis) for m in group.members} == {("w", 0), ("scale", 0), ("v", 1)}


def test_unknown_operators_freeze_and_are_named():
    net = Net(
        lambda self, x: torch.linalg.matrix_exp(x.transpose(1, 3)[..., :8].transpose(1, 3).float()).double(),
        8,
    )
    assert width(net) == 0
    assert "operator aten.linalg_matrix_exp" in reasons(net)


@pytest.mark.parametrize("mode", ["inner", "select", "joint"])
def test_pre_activation_networks(mode):
    net = randomise(models.PreResNet(20, width=0.5))
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    plan = slimilar.analyze(net, x, residual=mode)
    streams = [g for g in plan.groups if g.residual]
    assert bool(streams) == (mode == "joint")
    result = slimilar.prune(net, x, flops=0.7, residual=mode, substitute="none")
    assert result.error < 1e-9
    assert slimilar.count(result.model, x).flops == result.cut.flops


class KernelsForEachImage(nn.Module):
    """Images and channels on one axis, and as many groups as images: CondConv."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.route = nn.Conv2d(3, 12, 1), nn.Linear(12, 4)
        self.experts, self.shape = nn.Parameter(torch.randn(4, 5 * 12)), (5, 12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        b, c, h, w = x.shape
        kernels = (self.route(x.mean((2, 3))).sigmoid() @ self.experts).view(b * 5, c, 1, 1)
        return nn.functional.conv2d(x.reshape(1, b * c, h, w), kernels, groups=b).view(b, 5, h, w)


@pytest.mark.parametrize("size", [1, 2])
def test_channels_on_one_axis_with_images_stay(size):
    torch.manual_seed(0)
    net = KernelsForEachImage().double().eval()
    grouping = find_structure(net, X[:size]).grouping
    assert [g.name for g in grouping.groups] == ["route"]
    assert "this width only" in next(f.reason for f in grouping.frozen if f.name == "a")
    assert slimilar.remove_channels(net, X[:size], {"route": [0]}).route.out_features == 3
