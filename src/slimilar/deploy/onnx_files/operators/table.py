"""The table of converters, and what a converter sees of a node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.deploy.onnx_files.module import Layer, SizePlace, TensorPlace
from slimilar.deploy.onnx_files.reference import Array


class Unreadable(Exception):
    """An operator, or a setting of one, that has no converter; the message names the setting."""


@dataclass(frozen=True, eq=False)
class OnnxConstant:
    """A value that the images do not change: its numbers for one image.

    `more` is what each further image adds to it (sizes); `repeated` says that it is repeated for each image. With a
    `stride` it is repeated too, and larger by that much for each further image (places in a flattened batch).
    """

    value: Array
    more: Array | None = None
    repeated: bool = False
    stride: int | None = None

    @property
    def tensor(self) -> Tensor:
        """The numbers as a tensor of their own."""
        return torch.from_numpy(np.array(self.value))

    @property
    def is_number(self) -> bool:
        """Tell whether it is one floating-point number for all."""
        return self.value.size == 1 and self.value.dtype.kind == "f" and not self.repeated


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """One operator of the file: its settings and its inputs, computed ones on a sample batch."""

    kind: str
    opset: int
    settings: Mapping[str, Any]
    inputs: Sequence[Tensor | OnnxConstant | None]
    outputs: int
    batch: int  # images in the sample
    fixed_batch: bool  # the file is made for that many and no others
    doubled: Sequence[
        Tensor | None
    ] = ()  # computed inputs of a file with a fixed batch, all images given twice

    def tensor(self, k: int) -> Tensor:
        """Return a computed input."""
        found = self.inputs[k]
        if not isinstance(found, Tensor):
            raise Unreadable(f"a constant as input {k}")
        return found

    def in_front_of_batch(self, k: int) -> int | None:
        """Return how many numbers stand in front of the batch in a computed input, where the file fixes the batch.

        1 if its first axis is the batch, or begins with it as in (images, windows); 17 if 17 tokens come first. It is
        found by giving all images twice: the copies lie behind so many numbers. None if the batch is open.
        """
        twice = self.doubled[k] if self.fixed_batch else None
        x = self.tensor(k)
        axis = (
            next((a for a, n in enumerate(twice.shape) if n != x.shape[a]), None)
            if twice is not None
            else None
        )
        if twice is None or axis is None:
            return None
        fronts = [
            math.prod(x.shape[:axis]) * q for q in range(1, x.shape[axis] + 1) if x.shape[axis] % q == 0
        ]
        return next((n for n in fronts if _is_repeated(x, twice, n)), None)

    def constant(self, k: int) -> OnnxConstant | None:
        """Return a constant input, or None if it is left out; it must not be computed."""
        found = self.inputs[k] if k < len(self.inputs) else None
        if isinstance(found, Tensor):
            raise Unreadable(f"input {k} computed from the images")
        return found

    def weight(self, k: int) -> Tensor | None:
        """Return a floating-point constant as a tensor, or None if it is left out."""
        found = self.constant(k)
        return None if found is None else found.tensor.float()

    def numbers(self, k: int | None, name: str | None = None) -> tuple[int, ...] | None:
        """Return integers that an input or a setting holds, and that do not depend on the batch."""
        found = self.sizes(k, name)
        if found is not None and found.more is not None:
            raise Unreadable("a size that depends on the batch")
        return None if found is None else found.base

    def sizes(self, k: int | None, name: str | None = None) -> Size | None:
        """Return integers that an input or a setting holds."""
        if name is not None and name in self.settings:
            value = self.settings[name]
            return Size(
                tuple(int(n) for n in (value if isinstance(value, Sequence) else [value])), None, name
            )
        found = None if k is None else self.constant(k)
        if found is None or k is None:
            return None
        if found.repeated or found.stride is not None:
            raise Unreadable("sizes whose number depends on the batch")
        base = tuple(int(n) for n in np.atleast_1d(found.value))
        if found.more is None or not found.more.any():
            return Size(base, None, k)
        more = tuple(int(n) for n in np.atleast_1d(found.more))
        return Size(tuple(n - m for n, m in zip(base, more, strict=True)), more, k)


def _is_repeated(x: Tensor, twice: Tensor, front: int) -> bool:
    """Tell whether each of `front` parts of a tensor stands twice behind itself in another, up to rounding."""
    if not x.numel() or twice.numel() != 2 * x.numel():
        return False
    copies, once = twice.double().reshape(front, 2, -1), x.double().reshape(front, 1, -1)
    return bool((copies - once).abs().max() <= 1e-4 * once.abs().max())


@dataclass(frozen=True)
class Size:
    """Integers of an operator: for no image, what each image adds, and where the file has them."""

    base: tuple[int, ...]
    more: tuple[int, ...] | None
    place: int | str


@dataclass(frozen=True, eq=False)
class Built:
    """A module, which of the node's inputs it takes, and where its tensors and sizes stand in the file."""

    module: nn.Module
    takes: tuple[int, ...]
    slots: tuple[TensorPlace, ...] = ()
    sizes: tuple[SizePlace, ...] = field(default=())


Converter = Callable[[OnnxNode], Built]
CONVERTERS: dict[str, Converter] = {}


def converter(*kinds: str) -> Callable[[Converter], Converter]:
    """Enter a converter for some operators."""

    def enter(function: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return enter


def layer(
    node: OnnxNode,
    function: Callable[..., Any],
    inputs: Sequence[int] | None = None,
    sizes: Mapping[str, Size] | None = None,
    *,
    numbers: bool = True,
) -> Built:
    """Return a module that calls a function with the given inputs, in order, and with the sizes by name."""
    places = [k for k, x in enumerate(node.inputs) if x is not None] if inputs is None else list(inputs)
    operands = [_operand(node.inputs[k], numbers) for k in places]
    repeated = frozenset(
        p for p, k in enumerate(places) if isinstance(c := node.inputs[k], OnnxConstant) and c.repeated
    )
    sizes = sizes or {}
    made = Layer(
        function,
        operands,
        {name: size.base for name, size in sizes.items()},
        {name: size.more for name, size in sizes.items() if size.more is not None},
        repeated,
    )
    return Built(
        made,
        tuple(k for k, x in zip(places, operands, strict=True) if x is None),
        tuple(TensorPlace(f"input_{p}", k) for p, k in enumerate(places) if isinstance(operands[p], Tensor)),
        tuple(SizePlace(name, size.place, size.base) for name, size in sizes.items()),
    )


def _operand(given: Tensor | OnnxConstant | None, numbers: bool) -> Tensor | float | None:
    if isinstance(given, Tensor) or given is None:
        return None
    if numbers and given.is_number:
        return float(given.value.reshape(()))
    if given.stride is not None or (given.more is not None and given.more.any()):
        raise Unreadable("a constant that depends on the batch")
    return given.tensor
