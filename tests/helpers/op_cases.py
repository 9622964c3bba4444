"""One small case for every rule of the operator table: parameters, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slimilar.graph.labels import classes
from slimilar.graph.tracing import trace

Shapes = tuple[tuple[int, ...], ...]


class Apply(nn.Module):
    """A function of some parameters; their axes are the atoms, numbered in the order in which they are used."""

    def __init__(self, shapes: Shapes, function: Callable[..., Any]) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.rand(s)) for s in shapes])
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(*self.held)


def observe(shapes: Shapes, function: Callable[..., Any]) -> tuple[str, str, str]:
    """Return the labels of every output, the atoms that are tied, and the reasons for what is frozen, as text.

    `0 1 @ 1 2; 2 3 4 @ 3 1` are two factors, of shapes (1, 2) and (3, 1); outputs are divided by `|`.
    """
    found = trace(Apply(shapes, function), torch.zeros(1))
    labels = " | ".join("; ".join(map(_factor, found.values[i].labels)) for i in found.outputs)
    together: dict[int, list[int]] = {}
    for atom, number in enumerate(classes(found.atom_count, [found.ties, found.sums])):
        together.setdefault(int(number), []).append(atom)
    tied = ", ".join(" ".join(map(str, atoms)) for atoms in together.values() if len(atoms) > 1)
    reasons = dict.fromkeys(f.reason for f in found.freezes if f.reason != "model output")
    return labels, tied, "; ".join(reasons)


def _factor(factor: Tensor) -> str:
    atoms, shape = factor.flatten().tolist(), factor.shape
    return f"{' '.join(map(str, atoms))} @ {' '.join(map(str, shape))}"


C6 = ((1, 6, 1, 1),)  # atoms 0 to 5 on the channel axis
W = ((2, 3),)  # atoms 0, 1 on rows and 2, 3, 4 on columns
TWO = ((1, 4, 1, 1), (1, 4, 1, 1))  # atoms 0 to 3, and 4 to 7


def _bn(x: Tensor, *held: Tensor) -> Tensor:
    weight, bias, mean, var = held
    return F.batch_norm(x, mean, var, weight, bias)


def _instance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x.expand(1, 2, 3, 3), weight=weight, bias=bias)


def _written(x: Tensor) -> Tensor:
    out = torch.zeros(1, 8, 1, 1, device=x.device)
    out[:, :6] = x
    return out


CASES: dict[str, tuple[Shapes, Callable[..., Any]]] = {
    # new places
    "permute": (W, lambda w: w.permute(1, 0)),
    "transpose": (W, lambda w: w.transpose(0, 1)),
    "t": (W, lambda w: w.t()),
    "unsqueeze": (W, lambda w: w.unsqueeze(1)),
    "squeeze": (C6, lambda x: x.squeeze(-1).squeeze(-1)),
    "squeeze of all": (C6, lambda x: x.squeeze()),
    "expand": (C6, lambda x: x.expand(2, 6, 3, 3)),
    "movedim": (C6, lambda x: x.movedim(1, -1)),
    "contiguous": (C6, lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "clone": (C6, lambda x: x.clone()),
    "detach": (C6, lambda x: x.detach()),
    "to": (C6, lambda x: x.to(torch.float64)),
    "dropout": (C6, lambda x: F.dropout(x, 0.5, training=True)),
    # dividing and joining axes
    "view groups": (C6, lambda x: x.view(1, 2, 3, 1, 1)),
    "reshape": (C6, lambda x: x.reshape(1, 6)),
    "flatten": (C6, lambda x: x.flatten(1)),
    "flatten space": (((1, 2, 2, 1),), lambda x: x.flatten(1)),
    "unflatten": (C6, lambda x: x.unflatten(1, (3, 2))),
    "view as other type": (C6, lambda x: x.view(torch.int32)),
    "channel shuffle": (C6, lambda x: x.view(1, 2, 3, 1, 1).transpose(1, 2).reshape(1, 6, 1, 1)),
    "nn.ChannelShuffle": (C6, lambda x: F.channel_shuffle(x, 2)),
    # taking apart
    "slice half": (C6, lambda x: x[:, :3]),
    "slice odd": (C6, lambda x: x[:, 1:]),
    "slice strided": (C6, lambda x: x[:, ::2]),
    "slice nothing": (C6, lambda x: x[:, :]),
    "narrow": (C6, lambda x: x.narrow(1, 2, 2)),
    "chunk": (C6, lambda x: x.chunk(2, 1)),
    "split": (C6, lambda x: x.split(2, 1)),
    "unsafe split": (C6, lambda x: torch.unsafe_split(x, 2, 1)),
    "split uneven": (C6, lambda x: x.split(4, 1)),
    "split with sizes": (C6, lambda x: x.split((2, 4), 1)),
    "tensor_split": (C6, lambda x: x.tensor_split(3, 1)),
    "unbind": (C6, lambda x: x.view(2, 3).unbind(0)),
    "unbind channels": (((1, 2, 1, 1),), lambda x: x.unbind(1)),
    "select": (C6, lambda x: x.view(2, 3)[1]),
    "select channel": (C6, lambda x: x[:, 3]),
    # picking
    "index_select": (C6, lambda x: x.index_select(1, torch.tensor([4, 0]))),
    "index": (C6, lambda x: x[:, [5, 1, 1]]),
    "index other axis": (((4, 3),), lambda w: w[[2, 0]]),
    "index two axes": (((2, 2, 3),), lambda w: w[[0, 1], [1, 0]]),
    # rearranging
    "flip": (C6, lambda x: x.flip(1)),
    "roll": (C6, lambda x: x.roll(1, 1)),
    "roll space": (C6, lambda x: x.expand(1, 6, 2, 2).roll(1, 2)),
    "repeat": (C6, lambda x: x.repeat(2, 1, 3, 3)),
    "repeat channels": (((1, 3),), lambda x: x.repeat(1, 2)),
    "tile": (((1, 3),), lambda x: x.tile(2)),
    "repeat_interleave": (((1, 3),), lambda x: x.repeat_interleave(2, 1)),
    "pixel_shuffle": (((1, 8, 1, 1),), lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": (((1, 2, 1, 1),), lambda x: F.pixel_unshuffle(x.expand(1, 2, 2, 2), 2)),
    "unfold": (((1, 2, 1, 1),), lambda x: F.unfold(x.expand(1, 2, 2, 2), 2)),
    "fold": (((1, 8, 1),), lambda x: F.fold(x, (2, 2), 2)),
    "tensor unfold": (((1, 3, 1),), lambda x: x.expand(1, 3, 4).unfold(2, 2, 2)),
    # joining
    "cat": (TWO, lambda a, b: torch.cat([a, b], 1)),
    "cat other axis": (TWO, lambda a, b: torch.cat([a, b], 0)),
    "cat constant": (((1, 2, 1, 1),), lambda a: torch.cat([a, torch.zeros(1, 2, 1, 1, device=a.device)], 1)),
    "cat weights": (((2, 3), (2, 3)), lambda a, b: torch.cat([a, b], 0)),
    "stack": (TWO, lambda a, b: torch.stack([a.flatten(), b.flatten()])),
    "pad channels": (((1, 2, 1, 1),), lambda x: F.pad(x, (0, 0, 0, 0, 1, 2))),
    "pad space": (C6, lambda x: F.pad(x, (1, 1, 1, 1))),
    "pad reflect": (((1, 2, 1, 1),), lambda x: F.pad(x.expand(1, 2, 3, 3), (1, 1, 1, 1), mode="reflect")),
    "pad replicate": (((1, 2, 1, 1),), lambda x: F.pad(x.expand(1, 2, 3, 3), (1, 1, 1, 1), mode="replicate")),
    "pad circular": (((1, 2, 1, 1),), lambda x: F.pad(x.expand(1, 2, 3, 3), (1, 1, 1, 1), mode="circular")),
    # element by element
    "relu": (C6, F.relu),
    "gelu": (C6, F.gelu),
    "silu in place": (C6, lambda x: F.silu(x.clone(), inplace=True)),
    "hardswish": (C6, F.hardswish),
    "clamp": (C6, lambda x: x.clamp(0, 1)),
    "prelu": (((1, 3, 1, 1), (3,)), F.prelu),
    "glu": (C6, lambda x: F.glu(x, 1)),
    "add": (TWO, lambda a, b: a + b),
    "mul by channel": (((2, 3), (3,)), lambda a, b: a * b),
    "mul by number": (C6, lambda x: x * 2.0),
    "outer product": (((3, 1), (1, 2)), lambda a, b: a * b),
    "add a fixed tensor": (((1, 3),), lambda a: a + torch.arange(3, device=a.device)),
    "add zeros": (((1, 3),), lambda a: a + torch.zeros(1, 3, device=a.device)),
    "where": (TWO, lambda a, b: torch.where(a > 0, a, b)),
    "lerp": (TWO, lambda a, b: torch.lerp(a, b, 0.5)),
    "max of two": (TWO, torch.maximum),
    "masked_fill": (C6, lambda x: x.masked_fill(x > 0, 0.0)),
    "write into a part": (C6, _written),
    "fill": (C6, lambda x: x.clone().fill_(1.0)),
    "copy": (TWO, lambda a, b: torch.empty_like(a).copy_(b)),
    # over space, over axes
    "mean": (C6, lambda x: x.mean((2, 3))),
    "mean kept": (C6, lambda x: x.mean((2, 3), keepdim=True)),
    "sum of channels": (C6, lambda x: x.sum(1)),
    "sum of groups": (C6, lambda x: x.view(1, 2, 3).sum(1)),
    "amax": (W, lambda w: w.amax(1)),
    "max with indices": (C6, lambda x: x.max(2)),
    "var": (C6, lambda x: x.expand(1, 6, 2, 2).var((2, 3))),
    "softmax over space": (C6, lambda x: x.flatten(2).softmax(2)),
    "softmax over channels": (C6, lambda x: x.softmax(1)),
    "softmax over groups": (C6, lambda x: x.view(1, 2, 3).softmax(1)),
    "cumsum": (W, lambda w: w.cumsum(1)),
    "max_pool2d": (((1, 2, 1, 1),), lambda x: F.max_pool2d(x.expand(1, 2, 4, 4), 2)),
    "avg_pool1d": (((1, 2, 1),), lambda x: F.avg_pool1d(x.expand(1, 2, 4), 2)),
    "avg_pool3d": (((1, 2, 1, 1, 1),), lambda x: F.avg_pool3d(x.expand(1, 2, 4, 4, 4), 2)),
    "adaptive_avg_pool2d": (((1, 2, 1, 1),), lambda x: F.adaptive_avg_pool2d(x.expand(1, 2, 4, 4), 1)),
    "adaptive_max_pool2d": (((1, 2, 1, 1),), lambda x: F.adaptive_max_pool2d(x.expand(1, 2, 4, 4), 2)),
    "max_unpool2d": (
        ((1, 2, 1, 1),),
        lambda x: F.max_unpool2d(*F.max_pool2d(x.expand(1, 2, 4, 4), 2, return_indices=True), (2, 2)),
    ),
    "interpolate nearest": (((1, 2, 1, 1),), lambda x: F.interpolate(x, scale_factor=2)),
    "interpolate bilinear": (((1, 2, 1, 1),), lambda x: F.interpolate(x, (3, 3), mode="bilinear")),
    "interpolate bicubic": (((1, 2, 1, 1),), lambda x: F.interpolate(x, (3, 3), mode="bicubic")),
    "interpolate linear": (((1, 2, 1),), lambda x: F.interpolate(x, 3, mode="linear")),
    "interpolate trilinear": (((1, 2, 1, 1, 1),), lambda x: F.interpolate(x, (2, 2, 2), mode="trilinear")),
    "pool over channels": (((1, 1, 4),), lambda x: F.avg_pool1d(x, 2)),
    # norms
    "batch_norm": (((1, 2, 1, 1), (2,), (2,), (2,), (2,)), _bn),
    "group_norm": (((1, 4, 1, 1), (4,), (4,)), lambda x, w, b: F.group_norm(x, 2, w, b)),
    "weight_norm": (((2, 3), (2, 1)), lambda v, g: torch._weight_norm(v, g, 0)),
    "weight_norm without a magnitude": (((2, 3),), lambda v: torch._weight_norm(v, v[:, :1], 0)),
    "layer_norm": (((1, 3), (3,), (3,)), lambda x, w, b: F.layer_norm(x, (3,), w, b)),
    "instance_norm": (
        ((1, 2, 1, 1), (2,), (2,)),
        lambda x, w, b: F.instance_norm(x.expand(1, 2, 3, 3), weight=w, bias=b),
    ),
    "instance_norm of a batch": (((1, 2, 1, 1),), lambda x: F.instance_norm(x.expand(3, 2, 3, 3))),
    "local_response_norm": (C6, lambda x: F.local_response_norm(x, 2)),
    "normalize channels": (C6, lambda x: F.normalize(x, dim=1)),
    # products
    "conv1d": (((1, 2, 1), (3, 2, 1), (3,)), lambda x, w, b: F.conv1d(x, w, b)),
    "conv2d": (((1, 2, 1, 1), (3, 2, 1, 1)), lambda x, w: F.conv2d(x, w)),
    "conv3d": (((1, 2, 1, 1, 1), (3, 2, 1, 1, 1)), lambda x, w: F.conv3d(x, w)),
    "conv_transpose1d": (((1, 2, 1), (2, 3, 1)), lambda x, w: F.conv_transpose1d(x, w)),
    "conv_transpose2d": (((1, 2, 1, 1), (2, 3, 1, 1), (3,)), lambda x, w, b: F.conv_transpose2d(x, w, b)),
    "conv_transpose3d": (((1, 2, 1, 1, 1), (2, 3, 1, 1, 1)), lambda x, w: F.conv_transpose3d(x, w)),
    "depthwise": (((1, 3, 1, 1), (3, 1, 1, 1)), lambda x, w: F.conv2d(x, w, groups=3)),
    "depthwise times two": (((1, 2, 1, 1), (4, 1, 1, 1)), lambda x, w: F.conv2d(x, w, groups=2)),
    "groups by columns": (((1, 6, 1, 1), (4, 3, 1, 1)), lambda x, w: F.conv2d(x, w, groups=2)),
    "groups as a whole": (((1, 4, 1, 1), (2, 2, 1, 1)), lambda x, w: F.conv2d(x, w, groups=2)),
    "depthwise transposed": (((1, 2, 1, 1), (2, 1, 1, 1)), lambda x, w: F.conv_transpose2d(x, w, groups=2)),
    "linear": (((1, 2), (3, 2), (3,)), F.linear),
    "matmul": (((1, 2), (2, 3)), torch.matmul),
    "bmm": (((1, 2, 2), (1, 2, 3)), torch.bmm),
    "addmm": (((3,), (1, 2), (2, 3)), torch.addmm),
    "einsum": (((1, 2), (3, 2)), lambda a, b: torch.einsum("nc,oc->no", a, b)),
    "matrix times vector": (((3, 2), (2,)), torch.mv),
    "attention": (((1, 1, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2)), F.scaled_dot_product_attention),
    "bmm with two batches": (((2, 1, 2), (2, 2, 3)), torch.bmm),
    "baddbmm": (((1, 1, 3), (1, 2, 2), (1, 2, 3)), torch.baddbmm),
    "matrix times matrix of data": (((1, 2), (2, 3)), lambda a, b: (a @ b).relu() @ b.t()),
    # what nobody knows
    "unknown, by hand": (C6, lambda x: torch.linalg.matrix_exp(x.view(2, 3)[:, :2])),
    "unknown": (C6, lambda x: torch.linalg.qr(x.view(2, 3))[0]),
}


# channels stand on axis 1, before and after
PASSING: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "amin": (4, lambda x: x.amin((2, 3), keepdim=True)),
    "aminmax": (4, lambda x: x.aminmax(dim=2, keepdim=True)),
    "any": (4, lambda x: (x > 0).any(2, keepdim=True)),
    "all": (4, lambda x: (x > 0).all(2, keepdim=True)),
    "argmax": (4, lambda x: x.argmax(2, keepdim=True)),
    "argmin": (4, lambda x: x.argmin(2, keepdim=True)),
    "logsumexp": (4, lambda x: x.logsumexp((2, 3), keepdim=True)),
    "median": (4, lambda x: x.median(2, keepdim=True)),
    "min": (4, lambda x: x.min(2, keepdim=True)),
    "nansum": (4, lambda x: x.nansum((2, 3), keepdim=True)),
    "norm": (4, lambda x: x.norm(dim=(2, 3), keepdim=True)),
    "prod": (4, lambda x: x.prod(2, keepdim=True)),
    "std": (4, lambda x: x.std((2, 3), keepdim=True)),
    "std_mean": (4, lambda x: torch.std_mean(x, (2, 3), keepdim=True)),
    "var_mean": (4, lambda x: torch.var_mean(x, (2, 3), keepdim=True)),
    "cumprod": (4, lambda x: x.cumprod(2)),
    "logcumsumexp": (4, lambda x: x.logcumsumexp(2)),
    "log_softmax": (4, lambda x: x.log_softmax(3)),
    "sort": (4, lambda x: x.sort(3)),
    "logsigmoid": (4, F.logsigmoid),
    "rrelu": (4, F.rrelu),
    "relu6": (4, F.relu6),
    "softplus": (4, F.softplus),
    "mish": (4, F.mish),
    "celu": (4, F.celu),
    "hardsigmoid": (4, F.hardsigmoid),
    "leaky_relu": (4, lambda x: F.leaky_relu(x, 0.1)),
    "tanhshrink": (4, F.tanhshrink),
    "pow": (4, lambda x: x**2),
    "floor_divide": (4, lambda x: x // 2),
    "zeros_like": (4, torch.zeros_like),
    "ones_like": (4, torch.ones_like),
    "full_like": (4, lambda x: torch.full_like(x, 2.0)),
    "rand_like": (4, lambda x: x + torch.rand_like(x)),
    "new_zeros": (4, lambda x: x + x.new_zeros(x.shape)),
    "max_pool1d": (3, lambda x: F.max_pool1d(x, 2)),
    "max_pool3d": (5, lambda x: F.max_pool3d(x, 2)),
    "lp_pool2d": (4, lambda x: F.lp_pool2d(x, 2, 2)),
    "fractional_max_pool2d": (4, lambda x: F.fractional_max_pool2d(x, 2, output_size=2)),
    "adaptive_avg_pool1d": (3, lambda x: F.adaptive_avg_pool1d(x, 2)),
    "adaptive_avg_pool3d": (5, lambda x: F.adaptive_avg_pool3d(x, 2)),
    "adaptive_avg_pool2d to 2": (4, lambda x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive_max_pool1d": (3, lambda x: F.adaptive_max_pool1d(x, 2)),
    "adaptive_max_pool3d": (5, lambda x: F.adaptive_max_pool3d(x, 2)),
    "max_unpool3d": (5, lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), (2, 2, 2))),
    "nearest 1d": (3, lambda x: F.interpolate(x, scale_factor=2)),
    "nearest 3d": (5, lambda x: F.interpolate(x, scale_factor=2)),
    "nearest-exact": (4, lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact")),
    "antialias": (4, lambda x: F.interpolate(x, (2, 2), mode="bilinear", antialias=True)),
    "area": (4, lambda x: F.interpolate(x, (2, 2), mode="area")),
    "reflect 1d": (3, lambda x: F.pad(x, (1, 1), mode="reflect")),
    "reflect 3d": (5, lambda x: F.pad(x, (1,) * 6, mode="reflect")),
    "replicate 1d": (3, lambda x: F.pad(x, (1, 1), mode="replicate")),
    "replicate 3d": (5, lambda x: F.pad(x, (1,) * 6, mode="replicate")),
    "circular 1d": (3, lambda x: F.pad(x, (1, 1), mode="circular")),
    "grid_sample": (
        4,
        lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2, device=x.device), align_corners=False),
    ),
    "instance norm 1d": (3, F.instance_norm),
    "instance norm 3d": (5, F.instance_norm),
    "alpha_dropout": (4, lambda x: F.alpha_dropout(x, training=True)),
    "batch norm of the batch": (4, lambda x: F.batch_norm(x, None, None, training=True)),
    "roll over space": (4, lambda x: x.roll((1, 2), (2, 3))),
    "flip over space": (4, lambda x: x.flip(3)),
    "slice of space": (4, lambda x: x[:, :, 1:, ::2]),
    "index of space": (4, lambda x: x[:, :, [2, 0]]),
    "take a row": (4, lambda x: x[:, :, 1].unsqueeze(2)),
    "there and back": (
        4,
        lambda x: x.permute(0, 2, 3, 1).reshape(-1, 3).view(1, 4, 4, 3).permute(0, 3, 1, 2),
    ),
}
