"""Convolutions that are looked up, or not run at all: outputs and gradients' shapes are those of the real ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slimilar.errors import VerificationError
from slimilar.surgery.convolutions import ConvolutionMemory, RepeatedImages, WithoutConvolving
from slimilar.surgery.training_step import check_training_step


def counted(runs: list[int]) -> object:
    def convolve(x: Tensor, *rest: object) -> Tensor:
        runs.append(len(x))
        return torch.conv2d(x, *rest)  # type: ignore[arg-type]

    return convolve


@pytest.mark.parametrize("sizes", [(1, 3), (2, 3), (2, 1)])
def test_repeated_images_are_looked_up(sizes):
    torch.manual_seed(0)
    weight, images, runs, memory = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 8, 8), [], ConvolutionMemory()
    for size in sizes:
        x = images[torch.arange(size) % sizes[0]]
        memory.restart()
        found = memory.convolve(counted(runs), x, weight)
        assert torch.allclose(found, torch.conv2d(x, weight), atol=1e-6)
        found.zero_()  # whoever gets it may write to it
    assert runs == [sizes[0]]


def test_what_differs_in_one_number_runs():
    torch.manual_seed(0)
    weight, x, runs, memory = torch.randn(4, 3, 3, 3), torch.randn(1, 3, 8, 8), [], ConvolutionMemory()
    other = x.repeat(3, 1, 1, 1)
    other[2, 1, 4, 4] += 1
    for y, kernel in ((x, weight), (other, weight), (other, weight.clone())):
        memory.restart()
        assert torch.allclose(
            memory.convolve(counted(runs), y, kernel), torch.conv2d(y, kernel), rtol=0, atol=1e-5
        )
    assert runs == [1, 3, 3]


def test_a_model_computes_the_same_on_repeated_images():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 6, 3, groups=3), nn.Flatten())
    x, mode = torch.randn(1, 3, 8, 8), RepeatedImages()
    for size in (1, 3, 2):
        batch = x.expand(size, -1, -1, -1)
        with torch.no_grad(), mode:
            found = net(batch)
        assert torch.allclose(found, net(batch), atol=1e-6)


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
