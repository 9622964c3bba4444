r"""What each channel contributes to what its consumers write, at sampled places.

At every place a consumer writes
$$y_o = \sum_c \hat{x}_{oc}, \qquad \hat{x}_{oc} = \sum_k w_{ock} x_{ck},$$
where c runs over channels and k over taps. Methods that choose channels by keeping the next layer's output (ThiNet,
LASSO) need no more than the matrix $G_{cd} = E[\hat{x}_c \hat{x}_d]$ over sampled places and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.consumers import ConsumerLayer, find_consumers, patches, pixels
from slimilar.criteria.base import CalibrationView, Floats, Ints, Weights, by_share, free_units
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.precision import exact, exact_device

_OUTPUTS = 16  # of a consumer, drawn anew for each batch
_SAMPLES = 8  # for each channel of the group, at least
_FEWEST = 4096


@dataclass(frozen=True, eq=False)
class _Reading:
    """One consumer of one group: `units[p]` is the group's unit at position p of the consumer's input, or -1."""

    group: int
    consumer: ConsumerLayer
    units: Ints


class ByContribution:
    """A criterion that goes by the matrix G of every group: it defines `leaving`."""

    def leaving(self, gram: Floats, free: Ints) -> Ints:
        """Return those of the units that may leave, in the order in which they do."""
        raise NotImplementedError

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        assert weights.calibration is not None  # the facts declare that images are needed
        grams = contribution_grams(groups, weights, weights.calibration)
        return [
            "no layer consumes these channels"
            if gram is None
            else by_share(self.leaving(gram, free_units(group)), turn)
            for turn, (group, gram) in enumerate(zip(groups, grams, strict=True))
        ]


def contribution_grams(
    groups: Sequence[ChannelGroup], weights: Weights, calibration: CalibrationView
) -> list[Floats | None]:
    """Return the matrix G of every group, or None if no layer consumes it.

    With several consumers it is the sum of theirs, each as a share of the power that the group brings to it.
    """
    readings = _readings(groups, calibration)
    tensors = {name: t.detach() for name, t in weights.tensors.items()}
    home = exact_device(calibration.program.device)
    widths = [groups[r.group].width for r in readings]
    sums = [torch.zeros(width, width, dtype=torch.float64, device=home) for width in widths]
    with torch.no_grad():
        for i, batch in enumerate(calibration.batches):
            generator = torch.Generator().manual_seed(calibration.seed + i)
            values, position = replay.start(calibration.program, [batch]), 0
            for reading, total in zip(readings, sums, strict=True):
                replay.run(calibration.program, values, tensors, position, reading.consumer.op)
                position = reading.consumer.op
                width = groups[reading.group].width
                rows = -(-max(_FEWEST, _SAMPLES * width) // len(calibration.batches))
                for part in _parts(calibration, reading.consumer, values, tensors, rows, generator):
                    mine = by_unit(part, reading.units, width)
                    total += exact(mine.T @ mine)
            if calibration.progress is not None:
                calibration.progress("collecting activations", i + 1, len(calibration.batches))
    return _together(readings, sums, len(groups))


def _together(readings: Sequence[_Reading], sums: Sequence[Tensor], count: int) -> list[Floats | None]:
    found: list[Floats | None] = [None] * count
    for reading, total in zip(readings, sums, strict=True):
        share = (total / total.sum().clamp_min(torch.finfo(total.dtype).tiny)).cpu().numpy()
        before = found[reading.group]
        found[reading.group] = share if before is None else before + share
    return found


def _readings(groups: Sequence[ChannelGroup], calibration: CalibrationView) -> list[_Reading]:
    """Return the consumers of every group, in the order in which they run."""
    starts = [calibration.grouping.offsets[list(calibration.grouping.groups).index(g)] for g in groups]
    found = []
    for consumer in find_consumers(calibration.trace, calibration.grouping, calibration.program):
        for g, (start, group) in enumerate(zip(starts, groups, strict=True)):
            inside = (consumer.units >= start) & (consumer.units < start + group.width)
            if inside.any():
                found.append(_Reading(g, consumer, np.where(inside, consumer.units - start, -1)))
    return found


def by_unit(parts: Tensor, units: Ints, width: int) -> Tensor:
    """Return contributions (samples, positions) as (samples, units): a unit's positions are added up."""
    inside = torch.from_numpy(np.flatnonzero(units >= 0))
    found = parts.new_zeros(len(parts), width)
    return found.index_add_(1, torch.from_numpy(units)[inside].to(parts.device), parts[:, inside])


def _parts(
    calibration: CalibrationView, consumer: ConsumerLayer, values: replay.Values, tensors: dict[str, Tensor], rows: int,
    generator: torch.Generator,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield contributions (samples, positions) of one batch, for one drawn output after the other."""
    weight = tensors[consumer.weight].movedim(consumer.weight_axis, 1)
    weight = weight.reshape(*weight.shape[:2], -1)  # (outputs, inputs, taps)
    outputs = torch.randperm(len(weight), generator=generator)[:_OUTPUTS]
    seen, taps = _seen(calibration, consumer, values, tensors, -(-rows // len(outputs)), generator)
    for o in outputs.tolist():
        kernel = weight.new_zeros(len(consumer.units), weight.shape[2])
        positions = consumer.blocks(len(weight))[o * consumer.groups // len(weight)][1]
        kernel[torch.from_numpy(positions)] = weight[o, torch.from_numpy(consumer.weight_index[positions])]
        if taps == 1 and kernel.shape[1] > 1:  # one tap of a transposed convolution
            kernel = kernel[:, torch.randint(kernel.shape[1], (1,), generator=generator)]
        yield torch.einsum("rpk,pk->rp", seen, kernel)


def _seen(
    calibration: CalibrationView, consumer: ConsumerLayer, values: replay.Values, tensors: dict[str, Tensor], rows: int,
    generator: torch.Generator,
) -> tuple[Tensor, int]:  # fmt: skip
    """Return what a consumer sees at sampled places: (samples, positions, taps), and the number of taps."""
    instruction, x, kernel = (
        calibration.program.instructions[consumer.op],
        values[consumer.value],
        tensors[consumer.weight],
    )
    if "convolution" in instruction.func.name() and not instruction.args[6] and kernel.ndim in (3, 4):
        shape = calibration.trace.values[calibration.trace.ops[consumer.op].outputs[0]].shape[2:]
        places = torch.randperm(int(np.prod(shape)), generator=generator)[: -(-rows // len(x))]
        if len(places) * len(x) > rows:
            x = x[torch.randperm(len(x), generator=generator)[: max(1, rows // len(places))]]
        taps = tuple(kernel.shape[2:])
        found = patches(x, instruction, taps, places)
        return found.reshape(len(found), x.shape[1], -1), int(np.prod(taps))
    return pixels(x, consumer.axis, rows, generator)[:, :, None], 1
