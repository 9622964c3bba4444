"""Send images through a network: in which order channels leave, and how the output diverges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.consumers import ConsumerLayer
from slimilar.calibration.divergence import divergence
from slimilar.calibration.fisher import fisher_weights
from slimilar.calibration.program import Program
from slimilar.criteria.base import CalibrationView, Weights
from slimilar.criteria.consumer_moments import BatchedForward, ConsumerMoments
from slimilar.criteria.group_consumers import GroupConsumers
from slimilar.criteria.refit import RefittedKernel, Refitter
from slimilar.criteria.scan_images import ScanImages
from slimilar.graph.groups import ChannelGroup
from slimilar.reconstruction.solvers import Elimination

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scan:
    """What one walk of images through a network tells of every group: its consumers, and how its channels leave."""

    readers: GroupConsumers
    images: ScanImages
    seen: ConsumerMoments
    eliminations: Sequence[Elimination]  # of each group
    kernels: Sequence[
        dict[int, RefittedKernel]
    ]  # of each group, by the channels left: its only consumer's kernel

    def cut(self, g: int, steps: int) -> list[tuple[ConsumerLayer, Tensor, Tensor]]:
        """Return every consumer of a group, with the kernel and the constant for so many channels less."""
        gone = self.eliminations[g].removed[:steps] + self.readers.starts[g]
        found = []
        for consumer in self.readers.of[g]:
            refit = self.kernels[g].get(len(consumer.units) - steps)
            weight = self.seen.tensors[consumer.weight]
            new = self.seen.mixed(consumer, gone) if refit is None else refit.at(weight)
            found.append((consumer, *new))
        return found


def scan(
    groups: Sequence[ChannelGroup], weights: Weights, calibration: CalibrationView, effort: float
) -> Scan:
    """Walk through the network with the images; a group with one consumer is settled when that is reached."""
    tensors = {name: t.detach() for name, t in weights.tensors.items()}
    readers, images = (
        GroupConsumers.find(groups, calibration),
        ScanImages.of(calibration, len(groups), effort),
    )
    program = replay.resized(calibration.program, len(images.fit[0]))
    fisher = fisher_weights(program, [s.op for s in readers.all], tensors, images.fit[0], calibration.seed)
    seen, generator = ConsumerMoments(tensors, fisher), torch.Generator().manual_seed(calibration.seed)
    refitter, alone = Refitter(readers, seen, images, generator), readers.refittable(calibration.program)
    settled: dict[int, tuple[Elimination, dict[int, RefittedKernel]]] = {}
    fit, check = (BatchedForward(calibration.program, part) for part in (images.fit, images.check))
    for i, consumer in enumerate(readers.all):
        for part in (fit, check):
            part.advance(tensors, consumer.op)
        seen.note(consumer, fit, None if images.single else check, generator)
        if consumer.op in alone:
            settled[alone[consumer.op]] = refitter.refit(alone[consumer.op], consumer, fit, check)
        if calibration.progress is not None:
            calibration.progress("collecting activations", i + 1, len(readers.all))
    found = [settled.get(g) or (seen.eliminate(readers, g), {}) for g in range(len(groups))]
    return Scan(readers, images, seen, [order for order, _ in found], [kernels for _, kernels in found])


def divergence_by_width(found: Scan, calibration: CalibrationView) -> list[Floats]:
    """Return for every group the divergence at each of the measured fractions."""
    batches, fractions, tensors = found.images.measure, found.images.fractions, found.seen.tensors
    total = [np.zeros(len(fractions)) for _ in found.readers.groups]
    program = replay.resized(calibration.program, len(batches[0]))
    tasks = sorted((s[0].op, g) for g, s in enumerate(found.readers.of) if s)
    for b, batch in enumerate(batches):
        reference = replay.start(program, [batch])
        replay.run(program, reference, tensors)
        wanted = [reference[v] for v in program.outputs]
        values, position = replay.start(program, [batch]), 0
        for i, (op, g) in enumerate(tasks):
            replay.run(program, values, tensors, position, op)
            position = op
            for f, fraction in enumerate(fractions):
                steps = round(float(fraction) * len(found.eliminations[g].removed))
                total[g][f] += _divergence(program, found, g, steps, dict(values), wanted)
            if calibration.progress is not None:
                calibration.progress(
                    "measuring divergence", b * len(tasks) + i + 1, len(batches) * len(tasks)
                )
    return [np.maximum.accumulate(d / len(batches)) for d in total]


def _divergence(
    program: Program, found: Scan, g: int, steps: int, values: replay.Values, wanted: Sequence[Tensor]
) -> float:
    """Return how the output diverges when a group alone loses channels; `values` are those before its consumers."""
    if steps == 0:
        return 0.0
    tensors, constants = dict(found.seen.tensors), {}
    for consumer, weight, shift in found.cut(g, steps):
        tensors[consumer.weight], constants[consumer.op] = weight, shift
        replay.refresh(program, consumer.op, consumer.value, values, tensors)
    replay.run(program, values, tensors, found.readers.of[g][0].op, constants=constants)
    return divergence([values[v] for v in program.outputs], wanted)
