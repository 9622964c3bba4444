"""Convolutions that do not run as they are: outputs, or their shapes and gradients, are those of real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimilar.errors import VerificationError
from slimilar.surgery.convolutions import each_image_once, product, without_convolving
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
    with without_convolving(net):
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


def test_images_that_were_convolved_before_are_not_convolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, x, runs = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)), torch.randn(3, 3, 9, 9), []
    run = nn.Conv2d._conv_forward
    monkeypatch.setattr(
        nn.Conv2d, "_conv_forward", lambda self, *given: runs.append(self) or run(self, *given)
    )
    with torch.no_grad():
        expected = net(x[:1])
        runs.clear()
        with each_image_once(net):
            net(x)
            torch.testing.assert_close(net(x[:1]), expected)
            assert len(runs) == 2
            torch.testing.assert_close(net(x[1:2]), net[1](net[0](x[1:2])))
            assert len(runs) > 2


def test_what_was_written_to_is_convolved_again() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 1)),
        torch.randn(3, 3, 9, 9),
    )
    with torch.no_grad():
        expected = net(x[:2])
        with each_image_once(net):
            for count in (3, 2):
                found = net(x[:count])
    torch.testing.assert_close(found, expected)
    assert all("_conv_forward" not in vars(m) for m in net)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_a_kernel_of_one_position_is_a_product(stride: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(3, 5, 2, 3), nn.Conv2d(5, 7, 1, stride, bias=bias)
    expected = layer(x)
    made = product(x, layer.weight, layer.bias, stride, (0, 0), (1, 1), False, (0, 0), 1)
    assert made is not None
    assert made.stride() == expected.stride()
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(
    ("size", "kernel", "padding", "groups"),
    [(4, 1, 0, 1), (3, 3, 0, 1), (3, 1, 1, 1), (3, 1, 0, 2), (3, 1, 0, 3)],
)
def test_other_convolutions_and_wrong_widths_are_no_product(
    size: int, kernel: int, padding: int, groups: int
) -> None:
    x, weight = torch.zeros(2, 4, size, size), torch.zeros(6, 4 // groups, kernel, kernel)
    given = ((1, 1), (padding, padding), (1, 1), False, (0, 0), groups)
    assert product(x, weight, None, *given) is None
    assert product(x[:, :3], torch.zeros(6, 4, 1, 1), None, (1, 1), (0, 0), *given[2:5], 1) is None
