"""Copies of models: as deepcopy would make them, but faster, and with other tensors."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from torch import nn

from slimilar import models
from slimilar.utils.modules import copy_with, named_tensors, on_meta


class Odd(nn.Module):
    """Attributes of all kinds, a module in two places, a tensor that is no buffer, a list that is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.again = self.shared
        self.sizes = [1, 2, (3, 4)]
        self.alias = self.sizes
        self.table = {"a": [1], 5: nn.ReLU()}
        self.loose = torch.ones(2)
        self.hidden = [nn.Linear(2, 2)]
        self.register_buffer("count", torch.zeros(1))
        self.heads = nn.ModuleDict(OrderedDict(x=nn.Linear(3, 2)))
        self.heads["x"].weight = nn.Parameter(self.heads["x"].weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads["x"](self.again(self.shared(x)))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.copies = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Own:
        new = Own()
        new.layer = copy.deepcopy(self.layer, memo)
        new.copies = self.copies + 1
        return new


def test_nothing_is_shared_and_everything_is_there() -> None:
    net = Odd()
    twin = copy_with(net, {})
    assert twin.again is twin.shared is not net.shared
    assert twin.alias is twin.sizes is not net.sizes
    assert twin.sizes == net.sizes
    assert twin.table["a"] is not net.table["a"]
    assert twin.loose is not net.loose
    assert torch.equal(twin.loose, net.loose)
    assert twin.hidden[0] is not net.hidden[0]
    assert list(twin.state_dict()) == list(net.state_dict())
    assert not {id(t) for t in named_tensors(twin).values()} & {id(t) for t in named_tensors(net).values()}
    x = torch.randn(4, 3)
    assert torch.equal(twin(x), net(x))
    with torch.no_grad():
        twin.shared.weight.zero_()
    assert net.shared.weight.abs().sum() > 0


def test_same_as_deepcopy_on_a_network() -> None:
    net = models.build("resnet20", width=0.25).train()
    seen: list[int] = []
    net.get_submodule("layer1.0").register_forward_hook(lambda *_: seen.append(1))
    a, b = copy_with(net, {}), copy.deepcopy(net)
    assert repr(a) == repr(b)
    assert [sorted(vars(m)) for m in a.modules()] == [sorted(vars(m)) for m in b.modules()]
    assert [m.training for m in a.modules()] == [m.training for m in b.modules()]
    a(torch.zeros(2, 3, 32, 32))
    assert seen == [1]


def test_given_tensors_take_their_place_and_ties_hold() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    new = torch.ones(3, 3)
    twin = copy_with(net, {"0.weight": new})
    assert twin[0].weight is twin[1].weight
    assert torch.equal(twin[0].weight, new)
    assert isinstance(twin[0].weight, nn.Parameter)


def test_a_class_that_says_how_is_copied_its_own_way() -> None:
    assert copy_with(nn.Sequential(Own()), {})[0].copies == 1


def test_on_meta_holds_no_memory() -> None:
    twin = on_meta(Odd())
    assert all(t.is_meta for t in named_tensors(twin).values())
    assert not twin.training
