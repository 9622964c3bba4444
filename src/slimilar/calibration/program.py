"""The forward pass of a model as a program: the operators of its trace, in the trace's order.

Operator k of a program is operator k of its trace. Values are numbered as there and never change: where an operator
writes into memory in which other values lie, these get new numbers. `replay` runs a program on images.

A program is derived from a trace, and so there is one for each batch size. `program_of` traces a model again only for
a batch size that was not wanted before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any
from warnings import warn
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import nn

from slimilar.calibration.calibration_set import CalibrationSet
from slimilar.errors import InvalidInput, Option, SlimilarWarning
from slimilar.graph.other_batch import as_numbered_in, grows, summed_units
from slimilar.graph.records import Op, Trace
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.models.detectors import is_detector
from slimilar.utils.modules import named_tensors
from slimilar.utils.precision import working_dtype
from slimilar.utils.pytree import PLACE, Example, arguments, map_tensors, tensors_in


class NotReplayable(InvalidInput):
    """A model whose operators cannot be replayed on images, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"to replay its operators on images, a model must run the same ones on every batch, but {why} (it can be "
            "pruned without images, by ",
            Option("criterion", "similarity"),
            " and ",
            Option("reconstruction", "none"),
            ")",
        )
        self.why = why


@dataclass(frozen=True)
class Slot:
    """A tensor argument: the number of a value of the program."""

    value: int


@dataclass(frozen=True)
class Held:
    """A tensor argument: a parameter or buffer, by name."""

    name: str


@dataclass(frozen=True, eq=False)
class Instruction:
    """One operator and where its tensors come from and go to."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    held: tuple[str, ...]
    # Other values in the memory it writes to: number before and after.
    rewritten: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """The operators of one forward pass on a batch of one size, and where and in which precision they run."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    makers: Mapping[int, int]  # value -> the operator that makes it
    last_use: Mapping[int, int]  # value -> the last operator that needs it
    trace: Trace  # that it was derived from; its atoms are those of the structure
    device: torch.device
    dtype: torch.dtype
    at: Callable[[int], Program]  # the same for another batch size

    @property
    def batch_size(self) -> int:
        """How many images it takes at once."""
        return next((s[0] for s in (self.trace.values[v].shape for v in self.inputs) if s), 1)

    @property
    def numbers_per_image(self) -> int:
        """How many numbers all its values hold for one image."""
        sizes = (int(np.prod(value.shape)) for value in self.trace.values if value.dynamic)
        return sum(sizes) // max(1, self.batch_size)

    def numbers_before(self, stops: Sequence[int]) -> list[int]:
        """Return how many numbers values hold right before some operators, if each is freed after its last use."""
        change = np.zeros(len(self.instructions) + 2, np.int64)
        for v, last in self.last_use.items():
            value = self.trace.values[v]
            if value.dynamic:
                change[self.makers.get(v, -1) + 1] += int(np.prod(value.shape))
                change[min(last, len(self.instructions)) + 1] -= int(np.prod(value.shape))
        held = np.cumsum(change)
        return [int(held[stop]) for stop in stops]

    def moved(self, device: torch.device, dtype: torch.dtype) -> Program:
        """Return the same program on another device or in another precision."""
        return derive(self.trace, device, dtype, lambda size: self.at(size).moved(device, dtype))

    def consumers(self, value: int) -> list[int]:
        """Return the operators that take a value."""
        return self._takers.get(value, [])

    @cached_property
    def _takers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for k, instruction in enumerate(self.instructions):
            for value in dict.fromkeys(instruction.inputs):
                found.setdefault(value, []).append(k)
        return found

    def maker(self, value: int) -> int | None:
        """Return the operator that makes a value; None for an input."""
        return self.makers.get(value)


# --- one program for each batch size ------------------------------------------------------------------------------

_RECORDED: WeakKeyDictionary[Trace, dict[Any, Program]] = WeakKeyDictionary()


def program_of(model: nn.Module, example: Example, structure: Structure, size: int | None = None) -> Program:
    """Return the program of a model for batches of a size, by default that of the example.

    Raise `NotReplayable` with the reason if the model does not compute each image of a batch alike.
    """
    size = size or batch_of(example)
    device, dtype = computes_in(model, example)
    known = _RECORDED.setdefault(structure.trace, {})
    if (size, device, dtype) not in known:
        again = ref(model)

        def at(other: int) -> Program:
            alive = again()
            assert alive is not None, "a program is used while its model exists"
            found = program_of(alive, example, structure, other)
            _check_same_operators(found, program)
            return found

        program = derive(_traced(model, example, structure, size), device, dtype, at)
        known[size, device, dtype] = program
    return known[size, device, dtype]


def program_for(
    model: nn.Module, example: Example, structure: Structure, data: CalibrationSet
) -> tuple[Program, CalibrationSet]:
    """Return the program for the batches of a calibration set; where the model takes no batches of another size than
    the example's, the set in batches of that size, and a warning.
    """
    try:
        return program_of(model, example, structure, data.batch_size if data else None), data
    except NotReplayable as error:
        size = batch_of(example)
        if not structure.trace.meta or len(data) < size:
            raise
        what = (
            f"images go through the model in batches of {size}, as in its example input, because {error.why}"
        )
        warn(what, SlimilarWarning, stacklevel=2)
        return program_of(model, example, structure), replace(data, batch_size=size)


def record(model: nn.Module, example: Example) -> Program:
    """Return the program of a model for batches of the example's size, without a structure."""

    def at(size: int) -> Program:
        return record(model, resized_example(example, size))

    return derive(trace(model, example), *computes_in(model, example), at)


def batch_of(example: Example) -> int:
    """Return the batch size of an example input."""
    shapes = [t.shape for t in tensors_in(arguments(example)) if t.ndim]
    return shapes[0][0] if shapes else 1


def computes_in(model: nn.Module, example: Example) -> tuple[torch.device, torch.dtype]:
    """Return the device of a model, and the precision to compute in: that of its weights, at least float32."""
    tensors = [*named_tensors(model).values(), *tensors_in(arguments(example))]
    device = next((t.device for t in tensors), torch.device("cpu"))
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    return device, working_dtype(dtype)


def resized_example(example: Example, size: int) -> Example:
    """Return an example input of another batch size: its first entry again and again."""
    return map_tensors(lambda t: t[:1].expand(size, *t.shape[1:]) if t.ndim else t, example)


def _traced(model: nn.Module, example: Example, structure: Structure, size: int) -> Trace:
    """Return the trace at a batch size, with the atoms of the structure's."""
    original = structure.trace
    if not original.meta:
        raise NotReplayable(
            "its code depends on the values of tensors, or has an operator that does not run on the meta device: "
            f"{original.why_values}{_advice(model)}"
        )
    if size == batch_of(example):
        return original
    try:
        found = trace(model, resized_example(example, size), structure.assumptions)
    except Exception as error:  # whatever the user's code raises on another batch size
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise NotReplayable(f"on a batch of {size} images it raised: {lines[0]}{_advice(model)}") from error
    if not found.meta or not grows(original, found, size):
        raise NotReplayable(f"on a batch of {size} images it does not return {size} outputs")
    numbered = as_numbered_in(original, found)
    if numbered is None:
        raise NotReplayable("it uses different parameters at different batch sizes")
    if summed_units(original, structure.grouping) != summed_units(numbered, structure.grouping):
        raise NotReplayable(f"on a batch of {size} images, its channels reach different operators")
    return numbered


def _advice(model: nn.Module) -> str:
    """Return what to do about a model that is known not to be replayable as a whole."""
    if not is_detector(model):
        return ""
    return (
        "; its head decodes boxes in Python, so pass slimilar.models.detectors.RawPredictions(model) instead"
    )


def _check_same_operators(a: Program, b: Program) -> None:
    """Raise unless two programs run the same operators; only then may numbers of operators be shared."""
    if [op.name for op in a.trace.ops] != [op.name for op in b.trace.ops]:
        raise NotReplayable(
            f"it runs different operators on batches of {a.batch_size} and {b.batch_size} images"
        )


# --- from a trace to a program ------------------------------------------------------------------------------------


def derive(found: Trace, device: torch.device, dtype: torch.dtype, at: Callable[[int], Program]) -> Program:
    """Return the program of a trace."""
    numbering = _Numbering(found, device, dtype)
    instructions = tuple(numbering.instruction(k, op) for k, op in enumerate(found.ops))
    outputs = tuple(numbering.now(v) for v in found.outputs)
    makers = {v: k for k, i in enumerate(instructions) for v in i.outputs}
    last_use = {v: k for k, i in enumerate(instructions) for v in (*i.outputs, *i.inputs)}
    last_use |= dict.fromkeys(outputs, len(instructions))
    return Program(instructions, found.inputs, outputs, makers, last_use, found, device, dtype, at)


class _Numbering:
    """Where the tensors of each operator come from, and which values lie in the same memory."""

    def __init__(self, found: Trace, device: torch.device, dtype: torch.dtype) -> None:
        self.trace, self.device, self.dtype = found, device, dtype
        self._count = len(found.values)
        self._version: dict[int, int] = {}  # value of the trace -> its number now
        self._memory: dict[int, list[int]] = {}  # value -> all values in its memory
        self._last_use = {v: k for k, op in enumerate(found.ops) for v in op.inputs}
        self._last_use |= dict.fromkeys(found.outputs, len(found.ops))

    def now(self, value: int) -> int:
        """Return the number that a value of the trace has at this point of the program."""
        return self._version.get(value, value)

    def instruction(self, k: int, op: Op) -> Instruction:
        """Return operator k with the numbers of its values."""
        inputs = iter(op.inputs)
        given = [self._placed(x, inputs) for x in op.given]
        count = len(given) - len(op.keywords)
        kwargs = dict(zip(op.keywords, given[count:], strict=True))
        kwargs.pop("memory_format", None)
        leaves = list(_leaves(given))
        slots = tuple(x.value for x in leaves if isinstance(x, Slot))
        rewritten = self._rewritten(k, op)
        return Instruction(
            op.func, tuple(given[:count]), kwargs,
            outputs=(*op.outputs, *(after for _, after in rewritten)),
            inputs=(*slots, *(before for before, _ in rewritten)),
            held=tuple(x.name for x in leaves if isinstance(x, Held)),
            rewritten=rewritten,
        )  # fmt: skip

    def _placed(self, x: Any, inputs: Iterator[int]) -> Any:
        """Return an argument with what stands for the next of the inputs wherever it has a tensor."""
        if x is PLACE:
            return self._source(next(inputs))
        if type(x) in (list, tuple):
            return type(x)(self._placed(y, inputs) for y in x)
        if isinstance(x, torch.device):
            return self.device
        return self._precision(x) if isinstance(x, torch.dtype) else x

    def _precision(self, dtype: torch.dtype) -> torch.dtype:
        narrow = dtype.is_floating_point and dtype.itemsize < self.dtype.itemsize
        return self.dtype if narrow else dtype

    def _source(self, value: int) -> Any:
        name = self.trace.values[value].name
        if name is not None:
            return Held(name)
        constant = self.trace.constants.get(value)
        if constant is None:
            return Slot(self.now(value))
        return constant.to(self.device, self._precision(constant.dtype))

    def _rewritten(self, k: int, op: Op) -> tuple[tuple[int, int], ...]:
        """Number anew the values that are used later and lie in the memory that an operator writes to."""
        if not op.inputs or not _returns_memory(op.func):
            return ()
        target = op.inputs[0]
        sharing = self._memory.setdefault(target, [target])
        found = []
        if _writes(op.func):
            for value in sharing:
                if value != target and self._last_use.get(value, -1) > k:
                    found.append((self.now(value), self._count))
                    self._version[value] = self._count
                    self._count += 1
        sharing += op.outputs
        self._memory |= dict.fromkeys(op.outputs, sharing)
        return tuple(found)


@cache
def _returns_memory(func: Any) -> bool:
    """Tell whether an operator returns (a part of) the memory of its first argument."""
    schema = func._schema
    return bool(
        schema.arguments
        and schema.arguments[0].alias_info is not None
        and any(r.alias_info is not None for r in schema.returns)
    )


@cache
def _writes(func: Any) -> bool:
    """Tell whether an operator writes to its first argument."""
    first = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return first is not None and bool(first.is_write)


def is_view(func: Any) -> bool:
    """Tell whether an operator returns the memory of its first argument, seen in another shape or order."""
    return _returns_memory(func) and not _writes(func)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, tuple | list):
        for x in tree:
            yield from _leaves(x)
    else:
        yield tree
