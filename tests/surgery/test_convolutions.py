"""Convolutions that do not run: the shapes of outputs and gradients are those of real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimilar.errors import VerificationError
from slimilar.surgery.convolutions import WithoutConvolving
from slimilar.surgery.training_step import check_training_step


def test_a_step_without_convolving_has_the_shapes_of_one_with():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, 4, 1),
        nn.Conv2d(4, 2, 3, padding="same"),
    )
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    with WithoutConvolving():
        found = net(x)
        found.sum().backward()
    assert found.shape == net(x).shape
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_shapes_that_do_not_fit_fail_without_convolving_too():
    wrong = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(5, 2, 1))
    with pytest.raises(VerificationError, match="in training mode it raised RuntimeError"):
        check_training_step(
            nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1)), wrong, torch.zeros(1, 3, 8, 8)
        )
