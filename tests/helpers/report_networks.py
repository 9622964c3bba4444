"""Networks for the report: every kind of stream and join, and names that mean harm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from helpers.small_networks import layer

EXAMPLE = torch.zeros(1, 3, 16, 16)
HOSTILE = (
    "</script><script>hacked=1</script>",
    "<img src=x onerror='hacked=1'>",
    "a'b\"c`d$(reboot)\\ e",
    "=HYPERLINK(1)",
    "--flag={{data}}<!--",
    "卷积😀",
)


class Mixed(nn.Module):
    """A residual block, a dense one, a layer whose halves go separate ways, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layer(3, 24)
        self.inner, self.outer = layer(24, 40), layer(40, 24)
        self.dense1, self.dense2 = layer(24, 12), layer(36, 12)
        self.wide = layer(48, 32)
        self.left, self.right = layer(16, 20), layer(16, 20)
        self.gate = nn.Conv2d(20, 20, 1)
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.outer(self.inner(x))
        x = torch.cat([x, self.dense1(x)], 1)
        x = torch.cat([x, self.dense2(x)], 1)
        left, right = self.wide(x).chunk(2, 1)
        left = self.left(left)
        left = left * torch.sigmoid(self.gate(left.mean((2, 3), keepdim=True)))
        return self.head(torch.cat([left, self.right(right)], 1).mean((2, 3)))


class Named(nn.Module):
    """A chain of layers with the given names."""

    def __init__(self, names: tuple[str, ...] = HOSTILE) -> None:
        super().__init__()
        for i, name in enumerate(names):
            self.add_module(name, layer(3 if i == 0 else 16, 16))
        self.add_module("head", nn.Conv2d(16, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x
