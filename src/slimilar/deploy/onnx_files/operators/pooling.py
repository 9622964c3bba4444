"""Operators on the pixels of every channel: pooling and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slimilar.deploy.onnx_files.operators.layers import is_symmetric, pads_of, torch_pads
from slimilar.deploy.onnx_files.operators.table import Built, OnnxNode, Unreadable, converter, layer

_MAX: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _window(node: OnnxNode) -> tuple[list[int], list[int], list[int], list[int]]:
    kernel = list(node.settings["kernel_shape"])
    stride, dilation = (list(node.settings.get(name, [1] * len(kernel))) for name in ("strides", "dilations"))
    return kernel, stride, dilation, pads_of(node, kernel, stride, dilation)


@converter("MaxPool")
def max_pool(node: OnnxNode) -> Built:
    """Return max pooling."""
    if node.outputs > 1:
        raise Unreadable("indices as a second output")
    kernel, stride, dilation, pads = _window(node)
    ceil = bool(node.settings.get("ceil_mode", 0))
    function = partial(_max_pool, pads=pads, kernel=kernel, stride=stride, dilation=dilation, ceil=ceil)
    return layer(node, function)


def _max_pool(
    x: Tensor, pads: list[int], kernel: list[int], stride: list[int], dilation: list[int], ceil: bool
) -> Tensor:
    half = len(kernel)
    fits = is_symmetric(pads) and all(2 * p <= k for p, k in zip(pads, kernel, strict=False))
    if not fits:
        x = F.pad(x, torch_pads(pads), value=-math.inf)
    pooled: Tensor = _MAX[half](x, kernel, stride, pads[:half] if fits else 0, dilation, ceil)
    return pooled


@converter("AveragePool")
def average_pool(node: OnnxNode) -> Built:
    """Return average pooling; padding counts only where the file says so."""
    kernel, stride, dilation, pads = _window(node)
    if any(d != 1 for d in dilation):
        raise Unreadable("dilations")
    ceil, counts = (bool(node.settings.get(n, 0)) for n in ("ceil_mode", "count_include_pad"))
    function = partial(_average_pool, pads=pads, kernel=kernel, stride=stride, ceil=ceil, counts=counts)
    return layer(node, function)


def _average_pool(
    x: Tensor, pads: list[int], kernel: list[int], stride: list[int], ceil: bool, counts: bool
) -> Tensor:
    half, pool = len(kernel), _AVERAGE[len(kernel)]
    if is_symmetric(pads):
        found: Tensor = pool(x, kernel, stride, pads[:half], ceil, counts)
        return found
    summed: Tensor = pool(F.pad(x, torch_pads(pads)), kernel, stride, 0, ceil)
    if counts:
        return summed
    inside = F.pad(torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device), torch_pads(pads))
    shares: Tensor = pool(inside, kernel, stride, 0, ceil)
    return summed / shares


@converter("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Built:
    """Return the mean over all pixels."""
    return Built(nn.AdaptiveAvgPool2d(1), (0,)) if node.tensor(0).ndim == 4 else layer(node, _global_mean)


@converter("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Built:
    """Return the maximum over all pixels."""
    return layer(node, _global_max)


def _global_mean(x: Tensor) -> Tensor:
    return x.mean(list(range(2, x.ndim)), keepdim=True)


def _global_max(x: Tensor) -> Tensor:
    return x.amax(list(range(2, x.ndim)), keepdim=True)


# --- resizing -----------------------------------------------------------------------------------------------


@converter("Resize", "Upsample")
def resize(node: OnnxNode) -> Built:
    """Return interpolation of the last two axes."""
    x = node.tensor(0)
    scales, size = _target(node, x)
    mode = node.settings.get("mode", b"nearest").decode()
    default = "asymmetric" if node.kind == "Upsample" or node.opset == 10 else "half_pixel"
    where = node.settings.get("coordinate_transformation_mode", default.encode()).decode()
    if mode == "nearest":
        rounding = "floor" if node.kind == "Upsample" or node.opset == 10 else "round_prefer_floor"
        rounding = node.settings.get("nearest_mode", rounding.encode()).decode()
        return layer(node, _nearest(x, size, scales, where, rounding), [0])
    names = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)], "cubic": "bicubic"}
    aligned = {"align_corners": True, "half_pixel": False, "pytorch_half_pixel": False}
    if where not in aligned or mode not in names or node.settings.get("antialias", 0):
        raise Unreadable(f"mode {mode} with {where}")
    return layer(node, partial(_smooth, size=size, mode=names[mode], aligned=aligned[where]), [0])


def _target(node: OnnxNode, x: Tensor) -> tuple[list[float], list[int]]:
    """Return the scale and the size of every spatial axis."""
    place = 1 if node.kind == "Upsample" or node.opset == 10 else 2
    sizes = node.sizes(3) if len(node.inputs) > 3 else None
    if "axes" in node.settings or node.settings.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise Unreadable("axes or keep_aspect_ratio_policy")
    if sizes is not None:
        size = list(sizes.base[2:])
        return [m / n for m, n in zip(size, x.shape[2:], strict=True)], size
    told = node.settings.get("scales")
    if told is None:
        held = node.constant(place)
        told = [] if held is None else held.value.tolist()
    if len(told) != x.ndim or told[0] != 1 or told[1] != 1:
        raise Unreadable("scales of batch or channels")
    return list(told[2:]), [int(n * s) for n, s in zip(x.shape[2:], told[2:], strict=True)]


def _smooth(x: Tensor, size: list[int], mode: str, aligned: bool) -> Tensor:
    return F.interpolate(x, size, mode=mode, align_corners=aligned)


def _nearest(
    x: Tensor, size: list[int], scales: list[float], where: str, rounding: str
) -> Callable[[Tensor], Tensor]:
    picks = [_pick(n, m, s, where, rounding) for n, m, s in zip(x.shape[2:], size, scales, strict=True)]
    plain = [[int(i * n / m) for i in range(m)] for n, m in zip(x.shape[2:], size, strict=True)]
    if picks == plain:
        return partial(_plain_nearest, size=size)
    return partial(_picked, picks=[tuple(map(float, p)) for p in picks])


def _pick(before: int, after: int, scale: float, where: str, rounding: str) -> list[int]:
    i = np.arange(after)
    places = {
        "half_pixel": (i + 0.5) / scale - 0.5,
        "pytorch_half_pixel": (i + 0.5) / scale - 0.5 if after > 1 else i * 0.0,
        "align_corners": i * (before - 1) / max(1, after - 1),
        "asymmetric": i / scale,
    }
    rounds: dict[str, Any] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda a: np.ceil(a - 0.5),
        "round_prefer_ceil": lambda a: np.floor(a + 0.5),
    }
    if where not in places or rounding not in rounds:
        raise Unreadable(f"nearest with {where} and {rounding}")
    found: list[int] = np.clip(rounds[rounding](places[where]), 0, before - 1).astype(int).tolist()
    return found


def _plain_nearest(x: Tensor, size: list[int]) -> Tensor:
    return F.interpolate(x, size, mode="nearest")


def _picked(x: Tensor, picks: Sequence[tuple[float, ...]]) -> Tensor:
    for axis, pick in enumerate(picks, 2):
        x = x.index_select(axis, torch.tensor([int(p) for p in pick], device=x.device))
    return x
