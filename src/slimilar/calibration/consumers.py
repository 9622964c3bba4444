"""Where channels are read: the operators at which a removed channel can be made up for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration.program import Held, Instruction, Program, Slot, is_view
from slimilar.calibration.tap_coverage import covered
from slimilar.graph.groups import Grouping
from slimilar.graph.records import Read, Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ConsumerLayer:
    """A consumer on the program: `units[p]` is the unit (over all groups) at position p of its input axis, or -1."""

    op: int
    module: str
    value: int  # its input on the program
    axis: int
    units: Ints
    weight: str
    weight_axis: int
    weight_index: Ints  # position p of the input is multiplied with this index of the weight's axis
    bias: str | None
    norm: int | None  # the batch norm right behind it, as an operator on the program
    add: tuple[int, int] | None  # the addition behind that: the operator and the other value it takes
    covered: Tensor  # by tap, how often it meets the image and not the zeros around it
    groups: int = 1  # of a convolution: each group of outputs reads its own part of the input

    def blocks(self, outputs: int) -> list[tuple[slice, Ints]]:
        """Return which outputs read which positions."""
        each = outputs // self.groups
        parts = np.split(np.arange(len(self.units)), self.groups)
        return [(slice(i * each, (i + 1) * each), part) for i, part in enumerate(parts)]

    @property
    def plain(self) -> bool:
        """Whether every position has its own index in the weight."""
        return len(np.unique(self.weight_index)) == len(self.weight_index)


def pixels_of_a_channel(consumer: ConsumerLayer) -> int:
    """Return how many positions of a linear layer hold one channel, side by side: those of an image that was flattened.

    One where they do not lie so, or are not as many for every channel.
    """
    units, size = consumer.units, len(consumer.units)
    first = int((units == units[0]).argmin()) or size
    regular = size % first == 0 and (consumer.weight_index == np.arange(size)).all()
    rows = units.reshape(-1, first) if regular else units[:, None]
    alike = (rows == rows[:, :1]).all() and units[0] >= 0 and consumer.axis == 1
    return first if alike and len(np.unique(rows[:, 0])) == len(rows) else 1


def unflattened(consumer: ConsumerLayer, pixels: int) -> ConsumerLayer:
    """Return a linear layer on a flattened image as a convolution with a kernel of the image's size."""
    units = consumer.units[::pixels]
    return replace(consumer, units=units, weight_index=np.arange(len(units)), covered=torch.ones(pixels))


def find_consumers(trace: Trace, grouping: Grouping, program: Program) -> list[ConsumerLayer]:
    """Return every consumer of channels, in the order in which they run."""
    axes = sorted(trace.axes, key=lambda axis: axis.first)
    starts = np.array([axis.first for axis in axes])
    found = []
    for read in trace.reads:
        units = np.where(read.atoms >= 0, grouping.unit_of[read.atoms], -1)
        homes = np.searchsorted(starts, read.weight, side="right") - 1  # every atom is a position of one axis
        home = axes[homes[0]]
        value = input_slot(program.instructions[read.op])
        if value == read.value and (homes == homes[0]).all() and _takes_whole(program, read.op, home.tensor):
            index = np.asarray(read.weight, np.int64) - home.first
            groups = _groups(program.instructions[read.op])
            if groups == 1 or home.axis == 1:  # grouped transposed convolutions are read in another order
                consumer = _consumer(
                    trace, program, read, units, index, home.tensor, home.axis, value, groups
                )
                found.append(consumer)
    return found


def _consumer(
    trace: Trace,
    program: Program,
    read: Read,
    units: Ints,
    index: Ints,
    name: str,
    axis: int,
    value: int,
    groups: int,
) -> ConsumerLayer:
    norm, add = _behind(program, read.op)
    return ConsumerLayer(
        op=read.op,
        module=trace.ops[read.op].module,
        value=value,
        axis=read.axis,
        units=units,
        weight=name,
        weight_axis=axis,
        weight_index=index,
        bias=_bias(program.instructions[read.op]),
        norm=norm,
        add=add,
        covered=_covered(trace, program, read.op),
        groups=groups,
    )


def _covered(trace: Trace, program: Program, op: int) -> Tensor:
    taken, given = trace.ops[op].inputs[:2], trace.ops[op].outputs[0]
    before, kernel, after = (trace.values[v].shape[2:] for v in (*taken, given))
    return covered(program.instructions[op], kernel, before, after)


def _takes_whole(program: Program, op: int, weight: str) -> bool:
    """Tell whether an operator takes a parameter as its weight, at most transposed: not one computed from it."""
    trace, instruction = program.trace, program.instructions[op]
    which = 2 if trace.ops[op].name in ("aten.addmm", "aten.baddbmm", "aten.addmv") else 1
    taken, held = trace.values[trace.ops[op].inputs[which]].shape, trace.parameters.get(weight)
    shapes = [[n for n in shape if n > 1] for shape in (taken, held or taken)]
    same = shapes[0] == shapes[1] or (len(shapes[0]) == 2 and shapes[0] == shapes[1][::-1])
    return same and _is_view(program, instruction.args[which], weight)


def _is_view(program: Program, given: Any, weight: str) -> bool:
    """Tell whether an argument is a parameter, or a view of it."""
    while isinstance(given, Slot):
        maker = program.maker(given.value)
        if maker is None or not is_view(program.instructions[maker].func):
            return False
        given = program.instructions[maker].args[0]
    return isinstance(given, Held) and given.name == weight


def input_slot(instruction: Instruction) -> int | None:
    """Return the activation among an operator's inputs."""
    name = instruction.func.name()
    if "convolution" in name:
        return instruction.args[0].value if isinstance(instruction.args[0], Slot) else None
    if "addmm" in name:
        return instruction.args[1].value if isinstance(instruction.args[1], Slot) else None
    return instruction.args[0].value if instruction.args and isinstance(instruction.args[0], Slot) else None


def _groups(instruction: Instruction) -> int:
    return int(instruction.args[8]) if "convolution" in instruction.func.name() else 1


def _bias(instruction: Instruction) -> str | None:
    name = instruction.func.name()
    given = instruction.args[2] if "convolution" in name else instruction.args[0] if "addmm" in name else None
    return given.name if isinstance(given, Held) else None


def _behind(program: Program, op: int) -> tuple[int | None, tuple[int, int] | None]:
    """Return the batch norm that alone takes a consumer's output, and the addition that alone takes what follows."""
    value = program.instructions[op].outputs[0]
    norm = None
    users = program.consumers(value)
    if len(users) == 1 and "batch_norm" in program.instructions[users[0]].func.name():
        norm = users[0]
        value = program.instructions[norm].outputs[0]
        users = program.consumers(value)
    if len(users) == 1 and program.instructions[users[0]].func.name().startswith("aten::add"):
        instruction = program.instructions[users[0]]
        others = [v for v in instruction.inputs if v != value]
        if len(others) == 1 and not instruction.kwargs.get("alpha"):
            return norm, (users[0], others[0])
    return norm, None


# --- rows: the input of a consumer, one sample a row ---------------------------------------------------------------


def is_conv(instruction: Instruction) -> bool:
    """Tell whether an operator is a convolution that is not transposed, with one group."""
    return "convolution" in instruction.func.name() and not instruction.args[6] and instruction.args[8] == 1


def pixels(x: Tensor, axis: int, most: int, generator: torch.Generator) -> Tensor:
    """Return (samples, channels) of an activation, at most so many, drawn at random."""
    rows = x.movedim(axis, -1).reshape(-1, x.shape[axis])
    if len(rows) > most:
        rows = rows[torch.randperm(len(rows), generator=generator)[:most]]
    return rows


def patches(
    x: Tensor,
    instruction: Instruction,
    kernel: tuple[int, ...],
    places: Tensor,
    channels: Tensor | None = None,
) -> Tensor:
    """Return the patches of a convolution's input at some output places: (batch * places, channels * taps).

    `places` numbers the output positions, `channels` those of the input that are wanted. Only what is wanted is
    gathered, in whole rows where channels lie side by side.
    """
    _, _, _, stride, padding, dilation = instruction.args[:6]
    if x.ndim == 3:
        x, kernel = x.unsqueeze(2), (1, *kernel)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    sh, sw = _pair(stride)
    ph, pw = _pair(padding)
    dh, dw = _pair(dilation)
    x = torch.nn.functional.pad(x, (pw, pw, ph, ph)) if ph or pw else x
    out_w = (x.shape[3] - dw * (kernel[1] - 1) - 1) // sw + 1
    places = places.to(x.device)
    down, across = (torch.arange(size, device=x.device) for size in kernel)
    rows = (places // out_w * sh)[:, None] + down * dh
    cols = (places % out_w * sw)[:, None] + across * dw
    seen = at_places(x, (rows[:, :, None] * x.shape[3] + cols[:, None, :]).flatten())
    if channels is not None and len(channels) < x.shape[1]:
        seen = seen.index_select(1, channels.to(x.device))
    taps = kernel[0] * kernel[1]
    if taps == 1:
        return seen
    return seen.view(-1, taps, seen.shape[1]).transpose(1, 2).reshape(-1, seen.shape[1] * taps)


def at_places(images: Tensor, places: Tensor) -> Tensor:
    """Return the channels at some places of every image, (images * places, channels)."""
    count, channels = images.shape[:2]
    flat = images.flatten(2).transpose(1, 2)
    where = torch.arange(count, device=images.device)[:, None] * flat.shape[1] + places.to(images.device)
    return flat.reshape(-1, channels).index_select(0, where.flatten())


def _pair(numbers: Any) -> tuple[int, int]:
    return (numbers[0], numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
