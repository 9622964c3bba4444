"""The networks: the paper's numbers, shapes at every width, and published checkpoints where present."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.errors import InvalidInput
from slimilar.models import NAMES, VGG, PreResNet, ResNet, build

DATA = os.environ.get("SLIMILAR_DATA", "")


class PaperFlops(TorchDispatchMode):
    """The paper's convention, counted from the operators that run; independent of the package's own count."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "convolution":
            self.total += out.numel() * (2 * args[1][0].numel() + (args[2] is not None))
        elif name == "addmm":
            self.total += out.numel() * (2 * args[1].shape[1] + 1)
        elif "batch_norm" in name:
            self.total += 2 * out[0].numel()
        elif name in ("relu", "relu_"):
            self.total += out.numel()
        elif name == "max_pool2d_with_indices":
            self.total += out[0].numel() * args[1][0] * args[1][1]
        elif name in ("mean", "_adaptive_avg_pool2d"):
            self.total += args[0].numel()
        return out


@pytest.mark.parametrize(
    ("name", "classes", "millions"),
    [
        ("vgg16", 10, 627.36),
        ("vgg16", 100, 627.45),
        ("preresnet110", 10, 341.23),
        ("preresnet110", 100, 341.28),
    ],
)
def test_flops_of_the_papers_networks(name, classes, millions):
    with torch.device("meta"):
        model = build(name, classes).eval()
        image = torch.zeros(1, 3, 32, 32)
    with torch.no_grad(), PaperFlops() as count:
        model(image)
    assert round(count.total / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "parameters"),
    # He et al. (2015), table 6, print 0.27, 0.46, 0.66, 0.85 and 1.7 million for the padded shortcuts.
    [("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85), ("resnet110", 1.73)],
)
def test_parameters_of_the_published_residual_networks(name, parameters):
    with torch.device("meta"):
        model = build(name)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == parameters


@pytest.mark.parametrize("name", NAMES)
def test_every_network_at_every_width(name):
    for width in (0.3, 1.0):
        with torch.device("meta"):
            model = build(name, classes=7, width=width)
            assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_width_scales_channels():
    with torch.device("meta"):
        half, whole = VGG(width=0.5), VGG()
    for small, large in zip(half.modules(), whole.modules(), strict=True):
        if isinstance(small, nn.Conv2d):
            assert 2 * small.out_channels == large.out_channels


def test_vgg_is_what_the_paper_describes():
    with torch.device("meta"):
        layers = list(VGG().modules())
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Linear)
    assert [sum(isinstance(layer, kind) for layer in layers) for kind in kinds] == [13, 13, 13, 4, 1, 1]
    assert all(layer.bias is None for layer in layers if isinstance(layer, nn.Conv2d))


def test_preresnet_stream_is_read_by_batch_norms_only():
    """What the pruner's channel selection rests on: bn1 sees the stream as it came in."""
    model = PreResNet(depth=20).eval()
    stream: list[torch.Tensor] = []
    block = model.layer2[1]
    block.register_forward_pre_hook(lambda _, args: stream.append(args[0]))
    block.bn1.register_forward_pre_hook(lambda _, args: stream.append(args[0]))
    model(torch.randn(1, 3, 32, 32))
    assert stream[0] is stream[1]
    assert type(block.bn1) is nn.BatchNorm2d


def test_padded_shortcut_is_the_image_between_zeros():
    shortcut = ResNet(20).layer2[0].shortcut
    x = torch.randn(1, 16, 8, 8)
    y = shortcut(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


@pytest.mark.parametrize("make", [
    lambda: PreResNet(depth=100), lambda: ResNet(depth=21), lambda: ResNet(20, shortcut="none"),
    lambda: VGG(classes=0), lambda: VGG(width=0), lambda: build("vgg61"),
])  # fmt: skip
def test_wrong_arguments(make):
    with pytest.raises(InvalidInput, match=r"must be .*got"):
        make()


def test_a_name_nearly_right():
    with pytest.raises(InvalidInput, match="got 'vgg61': did you mean vgg16"):
        build("vgg61")
