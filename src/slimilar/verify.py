"""Prove a rewrite: the smaller model must equal the original with the removed channels masked.

The original runs on random input with its own weights, shared and not copied; wherever an operator reads channels,
those that were removed are set to zero on the way in. Pictures are made small first: what is compared are channels,
and these go the same way at any height and width as long as the same operators run, which is checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.copies import copy_with, named_modules, named_parameters, shadow, switch_to_eval
from slimilar.errors import VerificationError
from slimilar.groups import Grouping
from slimilar.records import Trace
from slimilar.rewrite import Kept, atoms_kept
from slimilar.trace import Example, arguments, map_tensors, name_of, tensors_in
from slimilar.trees import operands

Place = tuple[str, int]  # a kind of operator and its turn among all calls of that kind
Masks = Mapping[
    Place, list[tuple[int, int, Tensor]]
]  # which of its tensors, counted from the last, along which axis, which positions

# A linear layer takes one or the other by the strides of its input, and those may be others on the meta device.
_ALIKE = {"aten.addmm": "aten.mm", "aten.baddbmm": "aten.bmm"}

_SIDE = 32  # pictures twice as large are made as small as this: most networks halve them five times


class Masked(TorchDispatchMode):
    """Run a model with some channels set to zero wherever they are read; note which operators run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; without this, torch wraps every call in a guard against it."""
        return False

    def __init__(self, masks: Masks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masks = masks
        self.names: list[str] = []
        self._turns: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = name_of(func)
        kind = _ALIKE.get(name, name)
        turn = self._turns.get(kind, 0)
        self._turns[kind] = turn + 1
        place = (kind, turn)
        self.names.append(name)
        if place in self.masks:
            args = self._silenced(args, self.masks[place])
        return func(*args, **(kwargs or {}))

    def _silenced(self, args: tuple[Any, ...], masks: list[tuple[int, int, Tensor]]) -> tuple[Any, ...]:
        ins = operands(args)
        for which, axis, lost in masks:
            old = ins[which]
            new = old.index_fill(axis, lost.to(old.device), 0)
            args = tuple(new if a is old else a for a in args)
        return args

    @property
    def complete(self) -> bool:
        """Whether every place at which channels are read has been passed."""
        return all(turn < self._turns.get(kind, 0) for kind, turn in self.masks)


def masks_of(trace: Trace, grouping: Grouping, kept: Kept) -> Masks:
    """Return what has to be set to zero where, so that only these units are heard."""
    stays = np.append(atoms_kept(grouping, kept), True)  # CONSTANT = -1 finds the last entry
    turns: Counter[str] = Counter()
    places = []
    for op in trace.ops:
        kind = _ALIKE.get(op.name, op.name)
        places.append((kind, turns[kind]))
        turns[kind] += 1
    found: dict[Place, list[tuple[int, int, Tensor]]] = {}
    for read in trace.reads:
        lost = np.flatnonzero(~stays[read.atoms])
        if len(lost):
            inputs = trace.ops[read.op].inputs
            which = inputs.index(read.value) - len(inputs)
            found.setdefault(places[read.op], []).append((which, read.axis, torch.from_numpy(lost)))
    return found


def verify(
    model: nn.Module, small: nn.Module, example: Example, trace: Trace, grouping: Grouping, kept: Kept
) -> float:
    """Compare the smaller model with the masked original on random input; return the largest relative error.

    A difference in float32 is decided in float64. Models on the meta device have no numbers to compare.
    """
    parameters = named_parameters(model).values()
    if any(t.is_meta for t in parameters):
        return 0.0
    masks = masks_of(trace, grouping, kept)
    wide = any(t.dtype in (torch.float16, torch.bfloat16) for t in parameters)
    error = _error(model, small, example, trace, masks, torch.float32 if wide else None)
    if not error < 1e-4:
        error = _error(model, small, example, trace, masks, torch.float64)
        if not error < 1e-6:
            raise VerificationError(
                "the smaller model must equal the original with the removed channels masked, but their outputs "
                f"differ by {error:.2g} of the largest value"
            )
    return error


def _error(
    model: nn.Module,
    small: nn.Module,
    example: Example,
    trace: Trace,
    masks: Masks,
    dtype: torch.dtype | None,
) -> float:
    """Return the relative error on small pictures if the model takes them as it takes the example's, else on those."""
    original = shadow(model)
    if dtype is not None:
        original, small = copy_with(original, {}).to(dtype), copy_with(small, {}).to(dtype)
    device = next(iter(small.parameters())).device
    inputs = _random_like(example, dtype, device)
    less = _smaller(inputs)
    if less is not None:
        expected: list[Tensor] = []
        try:
            expected, run = _outputs(original, less, masks)
        except Exception:  # the user's code may say anything to a size that it was not made for
            run = Masked({})
        if run.names == [op.name for op in trace.ops]:
            return _difference(expected, _plain_outputs(small, less))
    expected, run = _outputs(original, inputs, masks)
    if not run.complete:
        raise VerificationError(
            "the model must run the operators that its trace has seen, but some of those that read channels "
            "did not run on random input"
        )
    return _difference(expected, _plain_outputs(small, inputs))


def _smaller(example: Example) -> Example | None:
    """Return an example with small pictures, None where they are small already or there are none."""
    found = [t.shape[-2:] for t in tensors_in(example) if t.is_floating_point() and t.ndim == 4]
    sides = [side for shape in found for side in shape]
    if not sides or min(sides) < 2 * _SIDE:
        return None
    scale = _SIDE / min(sides)

    def shrink(t: Tensor) -> Tensor:
        if not t.is_floating_point() or t.ndim != 4:
            return t
        height, width = (math.ceil(side * scale / 32) * 32 for side in t.shape[-2:])
        return t[..., :height, :width]

    return map_tensors(shrink, example)


def _outputs(model: nn.Module, inputs: Example, masks: Masks) -> tuple[list[Tensor], Masked]:
    args, kwargs = arguments(inputs)
    with torch.no_grad(), Masked(masks) as run:
        found = model(*args, **kwargs)
    return [t for t in tensors_in(found) if t.is_floating_point()], run


def _plain_outputs(small: nn.Module, inputs: Example) -> list[Tensor]:
    args, kwargs = arguments(inputs)
    with torch.no_grad(), _in_eval_mode(small):
        return [t for t in tensors_in(small(*args, **kwargs)) if t.is_floating_point()]


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model of ours to eval mode and back, module by module."""
    training = [m for m in named_modules(model).values() if m.training]
    if training:
        switch_to_eval(model)
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _difference(expected: list[Tensor], given: list[Tensor]) -> float:
    if [t.shape for t in expected] != [t.shape for t in given]:
        return float("inf")
    return max((_relative(a, b) for a, b in zip(expected, given, strict=True)), default=0.0)


def _relative(expected: Tensor, given: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((expected - given).abs().max() / scale)


def _random_like(example: Example, dtype: torch.dtype | None, device: torch.device) -> Example:
    generator = torch.Generator().manual_seed(0)

    def make(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t.to(device)
        noise = torch.randn(t.shape, generator=generator, dtype=torch.float32)
        return noise.to(device=device, dtype=dtype or t.dtype)

    return map_tensors(make, example)
