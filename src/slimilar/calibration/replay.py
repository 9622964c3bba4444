"""Run the operators of a traced model one by one, on real images, as far as wanted.

A `Program` holds the operators of one forward pass in the order of the trace, so operator k here is operator k there.
Playing it lets two versions of a network advance side by side, stop in front of a layer, have that layer's weights
replaced, and go on: nothing is ever computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.utils.modules import named_tensors, on_meta
from slimilar.utils.pytree import Example, arguments, map_tensors, tensors_in

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Slot:
    """A tensor argument: the number of a value on the program."""

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


@dataclass(frozen=True, eq=False)
class Program:
    """The operators of one forward pass on a batch of a fixed size."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last_use: Mapping[int, int]  # value -> the last operator that needs it
    record: Callable[[int], Program]  # the same for another batch size

    def consumers(self, value: int) -> list[int]:
        """Return the operators that take a value."""
        return [k for k, instruction in enumerate(self.instructions) if value in instruction.inputs]

    def maker(self, value: int) -> int | None:
        """Return the operator that makes a value; None for an input."""
        return next(
            (k for k in reversed(range(len(self.instructions))) if value in self.instructions[k].outputs),
            None,
        )


class _Recorder(TorchDispatchMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {id(t): name for name, t in named_tensors(model).items()}
        self.known: dict[int, tuple[Tensor, int]] = {}
        self.instructions: list[Instruction] = []
        self.count = 0

    def new(self, tensor: Tensor) -> int:
        self.known[id(tensor)] = (tensor, self.count)
        self.count += 1
        return self.count - 1

    def _place(self, tensor: Tensor) -> Any:
        if id(tensor) in self.known:
            return Slot(self.known[id(tensor)][1])
        if id(tensor) in self.names:
            return Held(self.names[id(tensor)])
        return tensor.detach()  # a constant of the code

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        to_meta = lambda t: t if t.is_meta else torch.empty_like(t, device="meta")  # noqa: E731
        result = func(*map_tensors(to_meta, args), **map_tensors(to_meta, kwargs))
        placed = map_tensors(self._place, (args, kwargs))
        leaves = list(_leaves(placed))
        outputs = tuple(self.new(t) for t in tensors_in(result))
        slots = tuple(x.value for x in leaves if isinstance(x, Slot))
        held = tuple(x.name for x in leaves if isinstance(x, Held))
        self.instructions.append(Instruction(func, placed[0], placed[1], outputs, slots, held))
        return result


def _leaves(tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        for x in tree:
            yield from _leaves(x)
    elif isinstance(tree, Mapping):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


def record(model: nn.Module, example: Example) -> Program:
    """Return the program of a model for batches of the size of the example."""
    copy = on_meta(model)
    recorder = _Recorder(copy)
    args, kwargs = map_tensors(lambda t: torch.empty_like(t, device="meta"), arguments(example))
    inputs = tuple(recorder.new(t) for t in tensors_in((args, kwargs)))
    with torch.no_grad(), recorder:
        result = copy(*args, **kwargs)
    outputs = tuple(recorder.known[id(t)][1] for t in tensors_in(result))
    last_use = {
        v: k
        for k, instruction in enumerate(recorder.instructions)
        for v in (*instruction.outputs, *instruction.inputs)
    }
    last_use |= dict.fromkeys(outputs, len(recorder.instructions))

    def again(size: int) -> Program:
        return record(model, map_tensors(lambda t: t[:1].expand(size, *t.shape[1:]), example))

    return Program(tuple(recorder.instructions), inputs, outputs, last_use, again)


def resized(program: Program, size: int) -> Program:
    """Return the program for batches of another size."""
    return program.record(size)


Values = dict[int, Tensor]


@cache
def _pure(func: Any) -> Any:
    """Return the same operator without the overwriting, if there is one: it spares a copy."""
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, overload or "default", None)


def _find(x: Any, values: Values, tensors: Tensors) -> Any:
    """Return an argument with its tensors; as a closure that calls itself it would keep all values alive."""
    if isinstance(x, Slot):
        return values[x.value]
    if isinstance(x, Held):
        return tensors[x.name]
    if isinstance(x, tuple | list):
        return type(x)(_find(y, values, tensors) for y in x)
    return x


def execute(program: Program, k: int, values: Values, tensors: Tensors) -> None:
    """Run operator k; what it overwrites in place is copied first, so that values never change."""
    instruction = program.instructions[k]
    args = [_find(a, values, tensors) for a in instruction.args]
    kwargs = {
        key: _find(a, values, tensors) for key, a in instruction.kwargs.items() if key != "memory_format"
    }
    if kwargs.get("device") is not None:
        kwargs["device"] = next(iter(tensors.values())).device
    # Recorded without data, a view may meet kernels in channels-last order (so trained ones are), where it must copy.
    func = (
        torch.ops.aten.reshape.default
        if instruction.func in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
        else instruction.func
    )
    if func._schema.is_mutable and args and isinstance(args[0], Tensor):
        pure = _pure(func)
        if pure is not None and all(t.dtype == args[0].dtype for t in tensors_in(args)):
            func = pure
        else:
            args[0] = args[0].clone()
    result = func(*args, **kwargs)
    for number, tensor in zip(instruction.outputs, tensors_in(result), strict=True):
        values[number] = tensor


def run(
    program: Program,
    values: Values,
    tensors: Tensors,
    start: int = 0,
    stop: int | None = None,
    constants: Mapping[int, Tensor] | None = None,
) -> None:
    """Run operators `start` to `stop`, freeing what is not needed any more; `constants` are added to outputs."""
    stop = len(program.instructions) if stop is None else stop
    for k in range(start, stop):
        execute(program, k, values, tensors)
        if constants and k in constants:
            add_constant(program, k, values, constants[k])
        for number in {*program.instructions[k].inputs, *program.instructions[k].outputs}:
            if program.last_use[number] <= k:
                values.pop(number, None)


def add_constant(program: Program, k: int, values: Values, constant: Tensor) -> None:
    """Add one number for each channel to the output of a convolution or a matrix product."""
    number = program.instructions[k].outputs[0]
    out = values[number]
    axis = 1 if "convolution" in program.instructions[k].func.name() else out.ndim - 1
    values[number] = out + constant.reshape([-1 if a == axis else 1 for a in range(out.ndim)])


def peek(program: Program, wanted: int, values: Values, tensors: Tensors) -> Tensor:
    """Return a value that lies ahead, computing only what it needs; `values` is left as it was."""
    ahead = dict(values)
    _compute(program, wanted, ahead, tensors)
    return ahead[wanted]


def _compute(program: Program, wanted: int, values: Values, tensors: Tensors) -> None:
    if wanted in values:
        return
    k = program.maker(wanted)
    if k is None:
        raise KeyError(wanted)
    for number in program.instructions[k].inputs:
        _compute(program, number, values, tensors)
    execute(program, k, values, tensors)


def refresh(program: Program, op: int, activation: int, values: Values, tensors: Tensors) -> None:
    """Make again what an operator takes that comes from weights alone (a transposed weight), after they changed."""
    for v in program.instructions[op].inputs:
        k = program.maker(v)
        if (
            v != activation
            and v in values
            and k is not None
            and program.instructions[k].held
            and not program.instructions[k].inputs
        ):
            execute(program, k, values, tensors)


def start(program: Program, batch: Sequence[Tensor]) -> Values:
    """Return the values at the beginning; convolutions take less time where channels lie side by side."""
    laid = [
        t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 and t.is_floating_point() else t
        for t in batch
    ]
    return dict(zip(program.inputs, laid, strict=True))
