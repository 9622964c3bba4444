"""A fast sample of the zoo, one for each way in which networks differ; all of it is in `tests/zoo` (make test-zoo)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from helpers.zoo_check import check
from slimilar.utils.torchvision_compat import import_torchvision

X = torch.randn(2, 3, 64, 64)


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "regnet_y_400mf"]
)
def test_torchvision(name):
    model = import_torchvision("torchvision.models").get_model(name, weights=None)
    if name == "squeezenet1_1":  # no batch norm: moments are propagated, and that is said
        from slimilar import analyze

        assert "propagated" in analyze(model, X).note
    check(model, X)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "test_byobnet", "ghostnet_050", "rexnet_100"]
)
def test_timm(name):
    import_torchvision()
    timm = pytest.importorskip("timm")
    check(timm.create_model(name), X)


class UNet(nn.Module):
    """Skips by concatenation, upsampling by transposed convolution."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = self._block(3, width), self._block(width, 2 * width)
        self.middle = self._block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = self._block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.dec1 = self._block(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def _block(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.middle(self.pool(b))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        return self.out(self.dec1(torch.cat([self.up1(b), a], 1)))


def dcgan(width: int = 8) -> nn.Sequential:
    """Return a generator."""
    layers: list[nn.Module] = []
    sizes = [16, 4 * width, 2 * width, width]
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.ConvTranspose2d(a, b, 4, 1 if i == 0 else 2, 0 if i == 0 else 1, bias=False)]
        layers += [nn.BatchNorm2d(b), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def audio() -> nn.Sequential:
    """Return a 1d network."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, stride=4), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 3, groups=8), nn.BatchNorm1d(16),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def video() -> nn.Sequential:
    """Return a 3d network."""
    return nn.Sequential(
        nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 8, (1, 3, 3)), nn.BatchNorm3d(8), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "shape"),
    [(UNet, (2, 3, 16, 16)), (dcgan, (2, 16, 1, 1)), (audio, (2, 1, 200)), (video, (2, 3, 6, 8, 8))],
)
def test_other_kinds(make, shape):
    check(make(), torch.randn(shape))


def test_a_hundred_models_leave_nothing_behind():
    import gc
    import weakref

    import slimilar

    alive = []
    for width in range(4, 104):
        net = nn.Sequential(nn.Conv2d(3, width, 1), nn.BatchNorm2d(width), nn.Conv2d(width, 2, 1))
        small = slimilar.remove_channels(net, torch.randn(1, 3, 4, 4), {"0": [width - 1]})
        assert small[0].out_channels == width - 1
        alive += [weakref.ref(net), weakref.ref(small)]
    del net, small
    gc.collect()
    assert not any(ref() is not None for ref in alive)
