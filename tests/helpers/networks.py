"""Random small networks made of every kind of operator, for property tests and end-to-end tests of single steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[int], nn.Module]  # number of channels -> a module on images with that many


class Do(nn.Module):
    """A function as a module, with named children."""

    def __init__(self, function: Callable[..., Tensor], **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.children())


class PerChannel(nn.Module):
    """A parameter and a buffer with one entry for each channel."""

    shift: Tensor

    def __init__(self, c: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(c, 1, 1) + 0.5)
        self.register_buffer("shift", torch.randn(1, c, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class SqueezeExcite(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(c, 3, 1), nn.Conv2d(3, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(self.down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class Heads(nn.Module):
    """Attention over the pixels of small images, whose heads may leave."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.heads, self.depth = 3, 4
        self.qkv, self.proj = nn.Linear(c, 36), nn.Linear(12, c)

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        b, n, _ = tokens.shape
        q, k, v = self.qkv(tokens).view(b, n, 3, self.heads, self.depth).permute(2, 0, 3, 1, 4).unbind(0)
        y = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1))
        return x + y.mean(1)[:, :, None, None]


class SplitAttention(nn.Module):
    """Softmax over two branches, as in ResNeSt and selective kernels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.both, self.gate = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(c, 2 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        both = self.both(x).view(b, 2, c, h, w)
        gate = self.gate(both.sum(1).mean((2, 3), keepdim=True)).view(b, 2, c, 1, 1).softmax(1)
        return (both * gate).sum(1)


class HeldSplit(nn.Module):
    """A split at numbers that the module holds."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.sizes = [c // 3, c - c // 3]
        self.conv = nn.Conv2d(c, c, 1)
        self.left = nn.Conv2d(c // 3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).split(self.sizes, 1)
        return torch.cat([self.left(a), b], 1)


class Einsum(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, c))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bchw,oc->bohw", x, self.weight)


class Twice(nn.Module):
    """One module used two times."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(c, c, 1), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.conv(self.norm(x)))).relu()


def _channels_last(module: nn.Module) -> nn.Module:
    return Do(lambda x, inner: inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), inner=module)


def _conv(c: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())


def _shuffle(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def _even(function: Callable[[Tensor], Tensor]) -> Make:
    return lambda c: Do(function) if c % 2 == 0 else nn.Identity()


def _gate(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return a * b.sigmoid()


def _attend(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return (flat @ (flat.transpose(1, 2) @ flat).softmax(-1)).view(x.shape)


def _attend_to(x: Tensor, f: nn.Module, g: nn.Module) -> Tensor:
    """Compare what two layers make of every place, as queries and keys."""
    weights = (f(x).flatten(2).transpose(1, 2) @ g(x).flatten(2)).softmax(-1)
    return (x.flatten(2) @ weights).view(x.shape)


STEPS: dict[str, Make] = {
    "conv": _conv,
    "conv with bias": lambda c: nn.Conv2d(c, 7, 1),
    "wide conv": lambda c: nn.Sequential(nn.Conv2d(c, 12, 1), nn.BatchNorm2d(12), nn.SiLU()),
    "strided": lambda c: nn.Conv2d(c, 6, 3, stride=2, padding=1),
    "grouped": lambda c: nn.Sequential(nn.Conv2d(c, 12, 1), nn.Conv2d(12, 8, 3, padding=1, groups=4)),
    "few groups": lambda c: nn.Sequential(nn.Conv2d(c, 12, 1), nn.Conv2d(12, 8, 3, padding=1, groups=2)),
    "depthwise": lambda c: nn.Sequential(
        nn.Conv2d(c, c, 3, padding=1, groups=c), nn.BatchNorm2d(c), nn.Hardswish()
    ),
    "depthwise times two": lambda c: nn.Conv2d(c, 2 * c, 3, padding=1, groups=c),
    "transposed": lambda c: nn.ConvTranspose2d(c, 6, 2, stride=2),
    "transposed in groups": lambda c: nn.Sequential(
        nn.Conv2d(c, 8, 1), nn.ConvTranspose2d(8, 4, 3, padding=1, groups=2)
    ),
    "transposed depthwise": lambda c: nn.ConvTranspose2d(c, c, 3, padding=1, groups=c),
    "batch norm": nn.BatchNorm2d,
    "batch norm without affine": lambda c: nn.BatchNorm2d(c, affine=False),
    "batch norm of the batch": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "group norm": lambda c: nn.Sequential(nn.Conv2d(c, 8, 1), nn.GroupNorm(4, 8)),
    "instance norm": lambda c: nn.InstanceNorm2d(c, affine=True),
    "layer norm": lambda c: _channels_last(nn.LayerNorm(c)),
    "linear": lambda c: _channels_last(nn.Linear(c, 6)),
    "einsum": Einsum,
    "prelu": nn.PReLU,
    "gelu": lambda c: nn.GELU(),
    "per channel": PerChannel,
    "squeeze and excite": SqueezeExcite,
    "split attention": SplitAttention,
    "heads": Heads,
    "residual": lambda c: Do(lambda x, f: x + f(x), f=nn.Sequential(_conv(c), nn.Conv2d(6, c, 1))),
    "dense": lambda c: Do(lambda x, f: torch.cat([x, f(x)], 1), f=_conv(c)),
    "branches": lambda c: Do(lambda x, f, g: torch.cat([f(x), g(x)], 1), f=_conv(c), g=nn.Conv2d(c, 4, 1)),
    "padded shortcut": lambda c: Do(
        lambda x, f: F.pad(x, (0, 0, 0, 0, 1, 2)) + f(x), f=nn.Conv2d(c, c + 3, 1)
    ),
    "zeros beside": lambda c: Do(lambda x: torch.cat([x, torch.zeros_like(x)], 1)),
    "chunk": _even(_gate),
    "glu": _even(lambda x: F.glu(x, 1)),
    "halves swapped": _even(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)),
    "half by shape": _even(lambda x: x[:, : x.shape[1] // 2]),
    "half and rest": _even(lambda x: torch.cat([x[:, : x.shape[1] // 2].relu(), x[:, x.shape[1] // 2 :]], 1)),
    "slice by number": lambda c: Do(lambda x: x[:, 1:]),
    "every second": _even(lambda x: x[:, ::2]),
    "split by numbers": lambda c: Do(lambda x: torch.cat(x.split([1, x.shape[1] - 1], 1)[::-1], 1)),
    "split held": lambda c: HeldSplit(c) if c > 5 else nn.Identity(),
    "unbind": _even(lambda x: sum(x.unflatten(1, (2, -1)).unbind(1))),
    "stack": lambda c: Do(lambda x: torch.stack([x, x.relu()], 2).flatten(1, 2)),
    "select": _even(lambda x: x.unflatten(1, (2, -1))[:, 1]),
    "index_select": lambda c: Do(lambda x: x.index_select(1, torch.tensor([0, 2, 1], device=x.device))),
    "flip": lambda c: Do(lambda x: x.flip(1)),
    "roll": lambda c: Do(lambda x: x.roll(1, 1)),
    "roll over space": lambda c: Do(lambda x: x.roll(1, 3)),
    "repeat": lambda c: Do(lambda x: x.repeat(1, 2, 1, 1)),
    "interleave": lambda c: Do(lambda x: x.repeat_interleave(2, 1)),
    "shuffle": _even(_shuffle),
    "nn.ChannelShuffle": lambda c: nn.ChannelShuffle(2) if c % 2 == 0 else nn.Identity(),
    "pixel shuffle": lambda c: nn.Sequential(nn.Conv2d(c, 12, 1), nn.PixelShuffle(2)),
    "pixel unshuffle": lambda c: nn.PixelUnshuffle(2),
    "max pool": lambda c: nn.MaxPool2d(2),
    "average pool": lambda c: nn.AvgPool2d(3, 1, 1),
    "upsample": lambda c: nn.Upsample(scale_factor=2, mode="bilinear"),
    "reflect": lambda c: nn.ReflectionPad2d(1),
    "circular": lambda c: nn.Conv2d(c, 6, 3, padding=1, padding_mode="circular"),
    "softmax over space": lambda c: Do(lambda x: x * x.flatten(2).softmax(2).view(x.shape)),
    "softmax over channels": lambda c: Do(lambda x: x * x.softmax(1)),
    "attention over space": lambda c: Do(_attend),
    "scaled by the width": lambda c: Do(lambda x: x * x.shape[1] ** -0.5),
    "mean over channels": lambda c: Do(lambda x: x * x.mean(1, keepdim=True)),
    "normalised channels": lambda c: Do(lambda x: F.normalize(x, dim=1)),
    "norm over channels": lambda c: Do(lambda x: x * x.norm(dim=1, keepdim=True)),
    "correlation": lambda c: Do(lambda x, f: x * (x * f(x)).sum(1, keepdim=True), f=nn.Conv2d(c, c, 1)),
    "pairs": lambda c: Do(_attend_to, f=nn.Conv2d(c, 4, 1), g=nn.Conv2d(c, 4, 1)),
    "beside in space": lambda c: Do(lambda x, f: torch.cat([x, f(x)], 3), f=nn.Conv2d(c, c, 1)),
    "beside in the batch": lambda c: Do(
        lambda x, f: torch.stack(torch.cat([x, f(x)], 0).chunk(2, 0)).sum(0), f=nn.Conv2d(c, c, 1)
    ),
    "weight norm": lambda c: nn.utils.parametrizations.weight_norm(nn.Conv2d(c, 6, 3, padding=1)),
    "image from rows": lambda c: Do(
        lambda x, f: x * f(x.mean((2, 3))).view(len(x), -1, 2, 2).mean((2, 3), keepdim=True),
        f=nn.Linear(c, 4 * c),
    ),
    "unfold": lambda c: Do(lambda x: F.unfold(x, 3, padding=1).view(x.shape[0], -1, *x.shape[2:])),
    "used twice": Twice,
    "dropout": lambda c: nn.Dropout2d(0.5),
    "sorted channels": lambda c: Do(lambda x: x.sort(1).values),
    "unknown operator": lambda c: Do(lambda x: x + torch.linalg.matrix_exp(x.new_zeros(1, 1))),
}


class Network(nn.Module):
    """A stem, some steps and a classifier. `forward` works at whatever width its modules have."""

    def __init__(self, steps: Sequence[str], stem: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.steps = nn.ModuleList()
        x = torch.zeros(2, stem, 8, 8)
        for name in steps:
            torch.manual_seed(len(self.steps))
            step = STEPS[name](x.shape[1]).eval()
            if _grows_too_large(step, x):
                continue
            self.steps.append(step)
            x = step(x).detach()
        self.head = nn.Linear(x.shape[1], 5)
        randomise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for step in self.steps:
            x = step(x)
        return self.head(x.mean((2, 3)))


def _grows_too_large(step: nn.Module, x: Tensor) -> bool:
    """Tell whether a step does not fit the size that images have by now, or makes them unwieldy."""
    try:
        out = step(x)
    except RuntimeError:
        return True
    return out.ndim != 4 or out[0].numel() > 20_000 or min(out.shape) < 1 or out.shape[1] < 2


def randomise(model: nn.Module) -> nn.Module:
    """Make every norm look trained."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        for name in ("weight", "bias", "running_mean", "running_var"):
            held = getattr(module, name, None)
            if isinstance(module, nn.modules.batchnorm._NormBase) and held is not None:
                held.data.copy_(torch.rand(held.shape, generator=generator) + 0.3)
    return model.double().eval()
