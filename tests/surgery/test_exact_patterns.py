"""Patterns in which channels may leave exactly: each loses some of every group and equals its masked original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import slimilar
from helpers.exact import check_exact
from slimilar.surgery.probe import find_structure

X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Two convolutions, the code in question, and a consumer."""

    def __init__(self, code: Callable[[Tensor, Tensor], Tensor], reads: int) -> None:
        super().__init__()
        self.a, self.b, self.code = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 12, 3, padding=1), code
        self.head = nn.Conv2d(reads, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.code(self.a(x), self.b(x)))


class NonLocal(nn.Module):
    """The non-local block of Wang et al. (2018), embedded Gaussian."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 3, padding=1)
        self.theta, self.phi, self.g = (nn.Conv2d(10, 6, 1) for _ in range(3))
        self.out, self.head = nn.Conv2d(6, 10, 1), nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        theta, phi, g = (f(x).flatten(2) for f in (self.theta, self.phi, self.g))
        weights = (theta.transpose(1, 2) @ phi).softmax(-1)
        y = (weights @ g.transpose(1, 2)).transpose(1, 2)
        return self.head(x + self.out(y.unflatten(2, x.shape[2:])))


class Decoder(nn.Module):
    """A linear layer whose output becomes an image, as in DCGAN and in decoders of autoencoders."""

    def __init__(self, shape: Callable[[Tensor], Tensor] | nn.Module) -> None:
        super().__init__()
        self.code, self.shape = nn.Linear(3, 12 * 2 * 2), shape
        self.up, self.head = nn.ConvTranspose2d(12, 8, 4, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(self.shape(self.code(x.mean((2, 3)))).relu()).relu())


class Tokens(nn.Module):
    """A token of its own beside those of the image; more tokens than channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 12, 1), nn.Parameter(torch.randn(1, 1, 12))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(torch.cat([self.first.expand(len(x), -1, -1), x], 1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "cat along the batch": (lambda: Two(lambda a, b: torch.cat([a, b], 0), 12), {"a"}),
    "cat along space": (lambda: Two(lambda a, b: torch.cat([a, b], 3), 12), {"a"}),
    "stack and sum": (lambda: Two(lambda a, b: torch.stack([a, b]).sum(0), 12), {"a"}),
    "tokens": (Tokens, {"patches"}),
    "sum over channels": (lambda: Two(lambda a, b: a.sum(1, keepdim=True) * b, 12), {"a", "b"}),
    "L2 norm": (lambda: Two(lambda a, b: a.norm(dim=1, keepdim=True) * b, 12), {"a", "b"}),
    "normalize": (lambda: Two(lambda a, b: F.normalize(a, dim=1) * b, 12), {"a"}),
    "correlation": (lambda: Two(lambda a, b: (a * b).sum(1, keepdim=True), 1), {"a"}),
    "cosine": (
        lambda: Two(lambda a, b: (F.normalize(a, dim=1) * F.normalize(b, dim=1)).sum(1, True) * b, 12),
        {"a"},
    ),
    "non-local": (NonLocal, {"theta", "g"}),
    "linear, view, transposed": (lambda: Decoder(lambda x: x.view(len(x), -1, 2, 2)), {"code", "up"}),
    "linear, Unflatten, transposed": (lambda: Decoder(nn.Unflatten(1, (12, 2, 2))), {"code", "up"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_leave_exactly(name: str) -> None:
    torch.manual_seed(0)
    make, names = NETWORKS[name]
    assert check_exact(make().double().eval(), X, names) < 1e-9


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_leave_with_reconstruction(name: str) -> None:
    """The model whose consumers were fitted to images is verified too."""
    torch.manual_seed(0)
    net, images = NETWORKS[name][0]().eval(), torch.randn(32, 3, 8, 8)
    options: dict[str, Any] = {"ratio": 0.3, "criterion": "magnitude-l2", "reconstruction": "linear"}
    for calibration in (None, images):
        result = slimilar.prune(net, X.float(), calibration=calibration, **options)
        assert result.error is not None
        assert result.error < 1e-4


@pytest.mark.parametrize(
    "code",
    [
        lambda a, b: a.mean(1, keepdim=True) * b,
        lambda a, b: a.amax(1, keepdim=True) * b,
        lambda a, b: a.norm(float("-inf"), dim=1, keepdim=True) * b,
        lambda a, b: a.softmax(1) * b,
    ],
)
def test_what_zeros_would_change_stays(code: Callable[[Tensor, Tensor], Tensor]) -> None:
    names = {g.name for g in find_structure(Two(code, 12).double(), X).grouping.groups}
    assert "a" not in names


class Correlation(nn.Module):
    """Features are compared pixel by pixel; the scale is a tensor that the code makes of their number (RAFT)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.features, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Conv1d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.features(self.hidden(x).relu()).flatten(2)
        scale = torch.sqrt(torch.tensor(found.shape[1]))
        return self.head(found.transpose(1, 2) @ found / scale)


def test_channels_by_whose_number_a_tensor_scales_stay() -> None:
    torch.manual_seed(0)
    net, x = Correlation().eval(), torch.randn(2, 3, 8, 8)
    grouping = find_structure(net, x).grouping
    assert [g.name for g in grouping.groups] == ["hidden"]
    assert next(f.reason for f in grouping.frozen if f.name == "features")
    slimilar.prune(net, x, ratio=0.5, criterion="magnitude-l2")
