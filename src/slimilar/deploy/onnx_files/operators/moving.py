"""Operators that move numbers: reshape, transpose, cut, join, pad."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slimilar.deploy.onnx_files.operators.layers import torch_pads
from slimilar.deploy.onnx_files.operators.table import (
    Built,
    OnnxConstant,
    OnnxNode,
    Size,
    Unreadable,
    converter,
    layer,
)
from slimilar.deploy.onnx_files.reference import Array


@converter("Reshape")
def reshape(node: OnnxNode) -> Built:
    """Return a reshape; where a file fixes its batch, the batch in the shape is made to follow the images."""
    shape = node.sizes(1, "shape")
    assert shape is not None
    more = shape.more or (0,) * len(shape.base)
    if node.settings.get("allowzero", 0) and (0, 0) in zip(shape.base, more, strict=True):
        raise Unreadable("an axis of no length")
    found = _with_batch(node, shape)
    tail = _same_tail(node.tensor(0).shape, found.base)
    head = len(found.base) - tail
    sizes = Size(found.base[:head], None if found.more is None else found.more[:head], found.place)
    return layer(node, partial(_reshape, tail=tail), [0], {"shape": sizes})


def _same_tail(before: Sequence[int], after: Sequence[int]) -> int:
    """Return how many of the last axes, batch and channels aside, a reshape leaves as they are.

    They are taken from the tensor: a height that happens to equal the number of channels must not shrink with it.
    """
    tail = 0
    while tail < min(len(before) - 2, len(after) - 1) and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return tail


def _with_batch(node: OnnxNode, shape: Size) -> Size:
    """Let the axis of a fixed shape that holds the batch follow the number of images.

    A reshape keeps the order of numbers: the batch stands behind as many of them after it as before. A file for one
    image that cuts it into 64 windows has (1, 8, 7, 8, 7, 96) -> (64, 49, 96): now 64 for each image.
    """
    front = node.in_front_of_batch(0)
    if front is None or shape.more is not None:
        return shape
    after = _resolved(shape.base, node.tensor(0).shape)
    place = _axis_behind(after, front, node.batch)
    if place is None or shape.base[place] < 1 or after[place] % node.batch:
        return shape  # it follows by itself, or cannot
    more = tuple(after[place] // node.batch if j == place else 0 for j in range(len(after)))
    return Size(tuple(0 if m else n for n, m in zip(shape.base, more, strict=True)), more, shape.place)


def _axis_behind(shape: Sequence[int], front: int, batch: int) -> int | None:
    """Return the axis with a batch that stands behind so many numbers: its own one, else one that it is joined with.

    >>> _axis_behind((17, 1, 16), 17, 1), _axis_behind((17, 2, 8), 17, 1), _axis_behind((17, 16), 17, 1)
    (1, 1, 0)
    """
    behind = [math.prod(shape[:j]) for j in range(len(shape) + 1)]
    own = next((j for j, n in enumerate(shape) if behind[j] == front and n == batch), None)
    if own is not None:
        return own
    inside = [j for j in range(len(shape)) if front % behind[j] == 0 == behind[j + 1] % front]
    channels = len(shape) - 1  # never counted with the images
    return max((j for j in inside if j < channels or len(inside) == 1), default=None)


def _resolved(shape: Sequence[int], x: Sequence[int]) -> list[int]:
    """Return a shape of ONNX with its numbers filled in: 0 stands for the axis of `x`, -1 for what is left.

    >>> _resolved((0, -1, 4), (2, 6, 8))
    [2, 12, 4]
    """
    copied = [x[j] if n == 0 else n for j, n in enumerate(shape)]
    known = math.prod(n for n in copied if n > 0)
    return [math.prod(x) // max(1, known) if n < 0 else n for n in copied]


def _reshape(x: Tensor, shape: tuple[int, ...], tail: int) -> Tensor:
    head = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    # Copied always: whether a view would do depends on the batch size, and operators must not.
    whole = x.clone(memory_format=torch.contiguous_format)
    return whole.view([*head, *x.shape[x.ndim - tail :]])


@converter("Expand")
def expand(node: OnnxNode) -> Built:
    """Return a broadcast to a shape."""
    shape = node.sizes(1)
    assert shape is not None
    return layer(node, _expand, [0], {"shape": shape})


def _expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, shape))


@converter("Tile")
def tile(node: OnnxNode) -> Built:
    """Return copies along every axis."""
    repeats = node.numbers(1)
    assert repeats is not None
    return layer(node, partial(_tile, repeats=repeats), [0])


def _tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return x.repeat(*repeats)


@converter("Flatten")
def flatten(node: OnnxNode) -> Built:
    """Return a matrix: the axes before the given one, and the others."""
    axis = node.settings.get("axis", 1) % (node.tensor(0).ndim + 1)
    return layer(node, partial(_flatten, axis=axis))


def _flatten(x: Tensor, axis: int) -> Tensor:
    return x.flatten(1) if axis == 1 else x.reshape(torch.Size(x.shape[:axis]).numel(), -1)


@converter("Transpose")
def transpose(node: OnnxNode) -> Built:
    """Return a permutation of the axes."""
    order = node.settings.get("perm", list(reversed(range(node.tensor(0).ndim))))
    return layer(node, partial(torch.permute, dims=tuple(order)))


@converter("Squeeze")
def squeeze(node: OnnxNode) -> Built:
    """Return a tensor without some axes of length one."""
    axes = node.numbers(1, "axes")
    if axes is None:
        raise Unreadable("no axes")
    return layer(node, partial(torch.squeeze, dim=axes), [0])


@converter("Unsqueeze")
def unsqueeze(node: OnnxNode) -> Built:
    """Return a tensor with more axes of length one."""
    axes = node.numbers(1, "axes")
    assert axes is not None
    rank = node.tensor(0).ndim + len(axes)
    return layer(node, partial(_unsqueeze, axes=sorted(a % rank for a in axes)), [0])


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


@converter("Concat")
def concat(node: OnnxNode) -> Built:
    """Return tensors behind each other; where a file is made for one image, constants are repeated for each."""
    axis = node.settings.get("axis", 1)
    computed = [k for k, x in enumerate(node.inputs) if isinstance(x, Tensor)]
    if (
        node.batch == 1
        and all(node.in_front_of_batch(k) == 1 for k in computed)
        and axis % node.tensor(computed[0]).ndim
    ):
        inputs = [replace(x, repeated=True) if isinstance(x, OnnxConstant) else x for x in node.inputs]
        node = replace(node, inputs=inputs)
    return layer(node, partial(_concat, axis=axis), numbers=False)


def _concat(*inputs: Tensor, axis: int) -> Tensor:
    return torch.cat(inputs, axis)


@converter("Split")
def split(node: OnnxNode) -> Built:
    """Return the parts of a tensor."""
    axis = node.settings.get("axis", 0)
    size, sizes = node.tensor(0).shape[axis], node.sizes(1, "split")
    if sizes is None:
        part = -(-size // node.outputs)
        parts = tuple(min(part, size - part * i) for i in range(node.outputs))
        sizes = Size(parts, None, 1 if node.opset >= 13 else "split")
    return layer(node, partial(_split, axis=axis), [0], {"parts": sizes})


def _split(x: Tensor, parts: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = x.split(parts, axis)
    return found


@converter("Slice")
def slice_(node: OnnxNode) -> Built:
    """Return a part of every given axis."""
    starts, ends = node.sizes(1, "starts"), node.sizes(2, "ends")
    assert starts is not None
    assert ends is not None
    axes = node.numbers(3, "axes") or tuple(range(len(starts.base)))
    steps = node.numbers(4) or (1,) * len(axes)
    function = partial(_slice, axes=axes, steps=steps)
    return layer(node, function, [0], {"starts": starts, "ends": ends})


def _slice(
    x: Tensor, starts: tuple[int, ...], ends: tuple[int, ...], axes: Sequence[int], steps: Sequence[int]
) -> Tensor:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            where = (slice(None),) * (axis % x.ndim) + (slice(start, end, step),)
            x = x[where]
        else:
            places = list(range(x.shape[axis]))[slice(start, end if end >= -x.shape[axis] else None, step)]
            x = x.index_select(axis, torch.tensor(places, device=x.device))
    return x


@converter("Gather")
def gather(node: OnnxNode) -> Built:
    """Return fixed places along an axis; their axes take the place of that axis."""
    index, axis = node.constant(1), node.settings.get("axis", 0)
    if index is None or index.more is not None or index.repeated:
        raise Unreadable("indices that depend on the batch")
    strided = _strided(node, index.value, index.stride, axis)
    if strided is not None:
        return layer(node, strided, [0])
    if index.value.ndim == 0:
        return layer(node, partial(torch.select, dim=axis, index=int(index.value)), [0])
    places = index.value.reshape(-1).tolist()
    if index.value.ndim == 1:
        return layer(node, partial(_gather, axis=axis, places=places), [0])
    return layer(node, partial(_gather_block, axis=axis, places=places, shape=index.value.shape), [0])


def _gather(x: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    index = torch.tensor([p % x.shape[axis] for p in places], device=x.device)
    return x.index_select(axis, index)


def _gather_block(x: Tensor, axis: int, places: Sequence[int], shape: Sequence[int]) -> Tensor:
    return torch.unflatten(_gather(x, axis, places), axis, tuple(shape))


def _strided(
    node: OnnxNode, index: Array, stride: int | None, axis: int
) -> Callable[[Tensor], Tensor] | None:
    """Return a strided view of a flattened batch, as exporters write `as_strided`, or None if this is none.

    Image i then has the places of the first one plus i times the numbers of an image.
    """
    x = node.tensor(0)
    if x.ndim != 1 or axis != 0 or index.ndim == 0:
        return None
    if stride is None:
        rows = index.reshape(len(index), -1)
        stride = len(x) // node.batch
        follows = rows[:1] + stride * np.arange(len(rows))[:, None]
        if not node.fixed_batch or len(index) != node.batch or not np.array_equal(rows, follows):
            return None
    places = index[:1].reshape(-1)
    if stride * node.batch != len(x) or places.min() < 0 or places.max() >= stride:
        raise Unreadable("indices that mix the images of a batch")
    whole = np.array_equal(places, np.arange(stride))
    return partial(
        _view_images, stride=stride, places=None if whole else places.tolist(), shape=index.shape[1:]
    )


def _view_images(x: Tensor, stride: int, places: Sequence[int] | None, shape: Sequence[int]) -> Tensor:
    images = x.view(-1, stride)
    return (images if places is None else _gather(images, 1, places)).reshape(-1, *shape)


@converter("Pad")
def pad(node: OnnxNode) -> Built:
    """Return a tensor with more numbers around it."""
    x, pads = node.tensor(0), node.numbers(1, "pads")
    assert pads is not None
    held = node.constant(2) if len(node.inputs) > 2 else None
    value = node.settings.get("value", 0.0) if held is None else held.value.item()
    axes = node.numbers(3) if len(node.inputs) > 3 else None
    if axes is not None:
        every = [0] * 2 * x.ndim
        for i, axis in enumerate(axes):
            every[axis % x.ndim], every[x.ndim + axis % x.ndim] = pads[i], pads[len(axes) + i]
        pads = tuple(every)
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.get(
        node.settings.get("mode", b"constant").decode()
    )
    if mode is None:
        raise Unreadable("another mode")
    return layer(node, partial(_pad, pads=_trimmed(torch_pads(pads)), mode=mode, value=value), [0])


def _trimmed(pads: list[int]) -> list[int]:
    while pads and pads[-2:] == [0, 0]:
        pads = pads[:-2]
    return pads


def _pad(x: Tensor, pads: list[int], mode: str, value: float) -> Tensor:
    return F.pad(x, pads, mode, value) if mode == "constant" else F.pad(x, pads, mode)


@converter("DepthToSpace")
def depth_to_space(node: OnnxNode) -> Built:
    """Return channels as pixels."""
    size = node.settings["blocksize"]
    if node.settings.get("mode", b"DCR") == b"CRD":
        return layer(node, partial(F.pixel_shuffle, upscale_factor=size))
    return layer(node, partial(_depth_first, size=float(size)))


def _depth_first(x: Tensor, size: float) -> Tensor:
    n, c, h, w = x.shape
    s = int(size)
    blocks = x.reshape(n, s, s, c // s**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // s**2, h * s, w * s)


@converter("SpaceToDepth")
def space_to_depth(node: OnnxNode) -> Built:
    """Return pixels as channels."""
    return layer(node, partial(_space_first, size=float(node.settings["blocksize"])))


def _space_first(x: Tensor, size: float) -> Tensor:
    n, c, h, w = x.shape
    s = int(size)
    blocks = x.reshape(n, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * s**2, h // s, w // s)
