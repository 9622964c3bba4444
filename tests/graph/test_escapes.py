"""Outputs and numbers that leave torch: seen, or refused by name; never pruned away."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.errors import InvalidInput
from slimilar.graph.reasons import FreezeKind

X = torch.zeros(1, 3, 9, 9)


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class Net(nn.Module):
    """Ten classes, returned in some way."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.wrap = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 10, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.b(self.a(x).relu()).mean((2, 3)))


def halved(net: nn.Module) -> slimilar.Result:
    return slimilar.prune(net.eval(), X, ratio=0.5, substitute="none", criterion="magnitude-l2")


SEEN: dict[str, Callable[[Tensor], Any]] = {
    "slots": Slotted,
    "deque": lambda t: collections.deque([t]),
    "set": lambda t: frozenset([t]),
    "list beside it": lambda t: (t, t.detach().tolist()),
    "whole numbers": lambda t: t.argmax(1),
}


@pytest.mark.parametrize("wrap", SEEN.values(), ids=SEEN)
def test_outputs_in_containers_and_slots_stay(wrap: Callable[[Tensor], Any]) -> None:
    small = halved(Net(wrap)).model
    assert (small.a.out_channels, small.b.out_channels) == (8, 10)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "numpy": (lambda t: t.detach().numpy(), "got numpy.ndarray:"),
    "numpy in a dict": (lambda t: {"x": t.detach().numpy()}, "got numpy.ndarray in a dict:"),
    "list": (lambda t: t.tolist(), "got a list without any"),
    "generator": (lambda t: (y for y in [t]), "got builtins.generator:"),
    "nothing": (lambda t: None, "got a NoneType without any"),
}


@pytest.mark.parametrize(("wrap", "said"), REFUSED.values(), ids=REFUSED)
def test_outputs_that_are_no_tensors_are_refused_by_name(wrap: Callable[[Tensor], Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        halved(Net(wrap))


@pytest.mark.parametrize("leave", [lambda t: t.detach().numpy(), np.asarray, lambda t: t.tolist()])
def test_channels_whose_numbers_leave_torch_inside_the_model_are_frozen(
    leave: Callable[[Tensor], Any],
) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.b(self.a(x))
            self.seen = leave(y)
            return self.c(y)

    frozen = {f.name: f for f in slimilar.analyze(Inside(), X, criterion="magnitude-l2").frozen}
    assert frozen["b"].kind is FreezeKind.UNKNOWN_OPERATOR
    assert frozen["b"].reason.startswith("operator Tensor.")
    assert "a" not in frozen
