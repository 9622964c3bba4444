"""Batch-norm statistics estimated anew: exact ones, on a copy, and of use after plain removal."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import slimilar
from slimilar.data import demo_images
from slimilar.errors import InvalidInput
from slimilar.models import demo_network
from slimilar.train import evaluate


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 4, 3),
        nn.BatchNorm2d(4),
    )  # fmt: skip


def test_statistics_are_those_of_the_pictures_behind_norms_at_work():
    net, x = network().double().eval(), torch.randn(40, 3, 9, 9, dtype=torch.float64)
    made = slimilar.recalibrate(net, x[:1], x)
    first = net[0](x)
    assert torch.allclose(made[1].running_mean, first.mean((0, 2, 3)))
    assert torch.allclose(made[1].running_var, first.var((0, 2, 3)))
    second = net[4](torch.relu(nn.functional.batch_norm(first, None, None, net[1].weight, net[1].bias, True)))
    assert torch.allclose(made[5].running_mean, second.mean((0, 2, 3)))


def test_the_given_model_and_all_else_of_it_stay_as_they_were():
    net = network()
    net[4].eval()
    before = copy.deepcopy(net.state_dict())
    made = slimilar.recalibrate(net, torch.zeros(1, 3, 9, 9), [torch.randn(5, 3, 9, 9)] * 3)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert made[1].momentum == 0.3
    assert [m.training for m in made.modules()] == [m.training for m in net.modules()]
    assert all(
        torch.equal(v, before[k])
        for k, v in made.state_dict().items()
        if "running" not in k and "num" not in k
    )


def test_it_mends_a_network_after_plain_removal():
    net, x, test = demo_network(), demo_images("train").tensor()[:128], demo_images("test").first(300)
    small = slimilar.prune(net, x[:1], flops=0.7, substitute="none").model

    def right(model: nn.Module) -> float:
        return evaluate(model, test).accuracy

    assert right(slimilar.recalibrate(small, x[:1], x)) > right(small) + 0.05


def test_a_model_without_batch_norms_is_refused_in_one_sentence():
    with pytest.raises(InvalidInput, match="batch norms"):
        slimilar.recalibrate(nn.Conv2d(3, 4, 1), torch.zeros(1, 3, 4, 4), torch.zeros(2, 3, 4, 4))
