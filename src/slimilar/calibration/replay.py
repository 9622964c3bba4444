"""Run the operators of a program one by one, on images, as far as wanted.

Two versions of a network can advance side by side, stop in front of a layer, have that layer's weights replaced, and go
on: nothing is computed twice. Values never change: what an operator overwrites in place is copied first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slimilar.calibration.program import Held, Instruction, Program, Slot
from slimilar.calibration.several_inputs import unpacked
from slimilar.errors import InvalidInput, Option
from slimilar.utils.pytree import map_tensors, tensors_in

Tensors = Mapping[str, Tensor]
Values = dict[int, Tensor]

_aten = torch.ops.aten
# Traced without data, a view may meet kernels in channels-last order (so trained ones are), where it must copy.
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}


def resized(program: Program, size: int) -> Program:
    """Return the program for batches of another size."""
    return program if program.batch_size == size else program.at(size)


def start(program: Program, batch: Sequence[Tensor]) -> Values:
    """Return the values at the beginning; convolutions take less time where channels lie side by side."""
    if len(batch) == 1 < len(program.inputs):
        batch = unpacked(batch[0], [program.trace.values[v].shape[1:] for v in program.inputs])
    return dict(zip(program.inputs, (_laid_out(t, program) for t in batch), strict=True))


def _laid_out(t: Tensor, program: Program) -> Tensor:
    if not t.is_floating_point():
        return t.to(program.device)
    t = t.to(program.device, program.dtype)
    return _channels_last(t) if t.ndim == 4 else t


def _channels_last(t: Tensor) -> Tensor:
    """Return images with channels side by side; a single channel is copied, for its strides alone tell the order.

    PyTorch takes one channel for channels-last as it is, and then lets no convolution behind it write that way.

    >>> _channels_last(torch.zeros(2, 1, 4, 4)).stride()
    (16, 1, 4, 1)
    """
    if t.shape[1] > 1:
        return t.contiguous(memory_format=torch.channels_last)
    return torch.empty_like(t, memory_format=torch.channels_last).copy_(t)


def execute(program: Program, k: int, values: Values, tensors: Tensors) -> None:
    """Run operator k."""
    instruction = program.instructions[k]
    args = [_find(a, values, tensors) for a in instruction.args]
    kwargs = {key: _find(a, values, tensors) for key, a in instruction.kwargs.items()}
    func = _aten.reshape.default if instruction.func in _VIEWS else instruction.func
    target = args[0] if args else None
    if func._schema.is_mutable and isinstance(target, Tensor):
        pure = _pure(func)
        if pure is not None and all(t.dtype == target.dtype for t in tensors_in(args)):
            func = pure
        else:
            args[0] = target.clone()
    made = list(tensors_in(_called(func, args, kwargs)))
    values.update(zip(instruction.outputs, made, strict=False))
    if instruction.rewritten and isinstance(target, Tensor):
        _rewrite(instruction, values, target, made[0])


def _find(x: Any, values: Values, tensors: Tensors) -> Any:
    """Return an argument with its tensors; as a closure that calls itself it would keep all values alive."""
    if isinstance(x, Slot):
        return values[x.value]
    if isinstance(x, Held):
        return tensors[x.name]
    if isinstance(x, tuple | list):
        return type(x)(_find(y, values, tensors) for y in x)
    return x


@cache
def _pure(func: Any) -> Any:
    """Return the same operator without the overwriting, if there is one: it spares a copy."""
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    if name in ("copy_", "zero_"):  # without it, torch has no gradient for them
        return None
    packet = getattr(_aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, overload or "default", None)


def called_on(instruction: Instruction, x: Tensor) -> Tensor:
    """Return what an operator of one tensor makes of another one, which may be written to."""
    found: Tensor = instruction.func(x, *instruction.args[1:], **instruction.kwargs)
    return found


def _called(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call an operator; some cannot read the order in which `start` lays out images, and get them in plain order."""
    try:
        return func(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        if all(t.is_contiguous() for t in tensors_in(args)):
            raise
        return func(*map_tensors(Tensor.contiguous, args), **kwargs)


def _rewrite(instruction: Instruction, values: Values, before: Tensor, after: Tensor) -> None:
    """Give values that lie in the memory of one that was written to their new numbers."""
    memory = before.untyped_storage()._cdata
    old = [values[number] for number, _ in instruction.rewritten]
    if any(t.untyped_storage()._cdata != memory for t in old):
        raise InvalidInput(
            f"an activation must not be modified through a view with other strides, but {instruction.func.name()} "
            "does: prune without images and with ",
            Option("reconstruction", "none"),
        )
    whole = _copied_with(max((before, *old), key=Tensor.numel), before, after)
    numbers = [instruction.outputs[0], *(number for _, number in instruction.rewritten)]
    for number, t in zip(numbers, (before, *old), strict=True):
        values[number] = whole.as_strided(t.size(), t.stride(), t.storage_offset())


def _copied_with(whole: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return a copy of a tensor and its memory, in which a part holds other numbers; gradients pass where they can."""
    geometry = before.size(), before.stride(), before.storage_offset()
    copy = whole.clone()
    alone = (
        whole.storage_offset() == 0 and whole.untyped_storage().nbytes() == copy.untyped_storage().nbytes()
    )
    if copy.stride() != whole.stride() or not alone:
        return torch.as_strided_scatter(whole, after, *geometry)
    copy.as_strided(*geometry).copy_(after)
    return copy


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
