"""Reasons have a kind: one that code can ask for, whatever the sentence says."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from slimilar import analyze
from slimilar.graph.grouping import find_groups
from slimilar.graph.groups import Frozen
from slimilar.graph.reasons import FreezeKind
from slimilar.graph.tracing import trace

X = torch.zeros(1, 3, 16, 16)


class Between(nn.Module):
    """Two convolutions, and a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


class Residual(nn.Module):
    """A stem, and a block that is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up, self.down = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 1), nn.Conv2d(12, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.down(self.up(x).relu()))


def kinds(frozen: tuple[Frozen, ...]) -> dict[str, FreezeKind]:
    return {f.name: f.kind for f in frozen}


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: torch.linalg.matrix_exp(x), FreezeKind.UNKNOWN_OPERATOR),
        (lambda x: x.softmax(1), FreezeKind.MIXED_CHANNELS),
        (lambda x: x * torch.arange(8.0).view(8, 1, 1), FreezeKind.FIXED_SIZE),
    ],
)
def test_what_lies_between_gives_the_kind(function: Callable[[Tensor], Tensor], kind: FreezeKind) -> None:
    found = find_groups(trace(Between(function), X), "inner").frozen
    assert kinds(found) == {"a": kind, "b": FreezeKind.MODEL_OUTPUT}


def test_streams_and_exclusions_have_kinds_of_their_own() -> None:
    found = kinds(analyze(Residual(), X, criterion="magnitude-l2", exclude=["up"]).frozen)
    assert found == {
        "stem": FreezeKind.RESIDUAL_STREAM,
        "up": FreezeKind.EXCLUDED,
        "head": FreezeKind.MODEL_OUTPUT,
    }
