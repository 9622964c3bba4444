"""Small networks for the report: every kind of stream and join, and names that mean harm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

HOSTILE = (
    "</script><script>hacked=1</script>",
    "<img src=x onerror='hacked=1'>",
    "a'b\"c`d$(reboot)\\ e",
    "=HYPERLINK(1)",
    "--flag={{data}}<!--",
    "卷积😀",
)


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every batch norm the spread of a trained one."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for parameter, scale in ((module.weight, 0.3), (module.bias, 0.6)):
                values = scale * torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(values.abs() + 0.02 if parameter is module.weight else values)
    return model.eval()


def conv(width_in: int, width: int, kernel: int = 3) -> nn.Sequential:
    """Return convolution, batch norm and ReLU."""
    layers = (
        nn.Conv2d(width_in, width, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )
    return nn.Sequential(*layers)


class Mixed(nn.Module):
    """A residual block, a dense one, a layer whose halves go separate ways, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 24)
        self.inner, self.outer = conv(24, 40), conv(40, 24, 1)
        self.dense1, self.dense2 = conv(24, 12), conv(36, 12)
        self.wide = conv(48, 32)
        self.left, self.right = conv(16, 20), conv(16, 20, 1)
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
            self.add_module(name, conv(3 if i == 0 else 16, 16))
        self.add_module("head", nn.Conv2d(16, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x
