"""Which module runs, where in the code, and how often it has called an operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.graph.module_stack import ModuleStack
from slimilar.utils.modules import named_modules


class Block(nn.Module):
    """Two activations and a layer, as repeated blocks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.relu()).relu()


class Positions(TorchDispatchMode):
    """Ask the stack at every operator."""

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()
        self.stack = stack
        self.found: list[tuple[str, str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.relu.default:
            self.found.append(self.stack.here("relu"))
        return func(*args, **(kwargs or {}))


def run(model: nn.Module) -> tuple[list[tuple[str, str, int]], list[str]]:
    """Return where every ReLU ran, and the modules in the order in which they ended."""
    stack, left = ModuleStack(named_modules(model)), []
    positions = Positions(stack)
    with stack.following(lambda path, module, result: left.append(path)), torch.no_grad(), positions:
        model(torch.ones(1, 3))
    return positions.found, left


def test_repeated_blocks_share_a_place_and_count_their_own_turns() -> None:
    found, left = run(nn.Sequential(Block(), Block()))
    assert [(module, turn) for module, _, turn in found] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    assert len({place for _, place, _ in found}) == 1
    assert left == ["0.layer", "0", "1.layer", "1"]


def test_layers_of_one_list_have_places_of_their_own() -> None:
    found, _ = run(nn.Sequential(nn.ReLU(), nn.ReLU()))
    assert len({place for _, place, _ in found}) == 2


def test_no_hook_is_left_behind_even_after_an_error() -> None:
    model = nn.Sequential(Block())
    with pytest.raises(RuntimeError), ModuleStack(named_modules(model)).following(lambda *_: None):
        model(torch.ones(1, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
