"""What consumers see of a network's images: moments, ridges, and the order in which channels leave by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.consumers import ConsumerLayer, pixels
from slimilar.calibration.program import Program
from slimilar.criteria.base import free_units
from slimilar.criteria.group_consumers import GroupConsumers
from slimilar.reconstruction.channel_mixing import Replacement, absorb, regression, zero_replacement
from slimilar.reconstruction.ridge import held_out_strength, removed_channel_statistics
from slimilar.reconstruction.solvers import Elimination, SampleMoments, backward_elimination, ridge
from slimilar.utils.devices import room
from slimilar.utils.precision import exact

CAREFUL = 1.0  # the ridge where there is no image to measure on

_LARGEST = 4096  # positions of a consumer whose covariance is worth holding
_LIVE = 150_000_000  # numbers held of all images; where activations are large, some images join later


class BatchedForward:
    """Images on their way through the network, in batches of one size; where activations are large, some wait."""

    def __init__(self, program: Program, batches: Sequence[Tensor]) -> None:
        self.program = replay.resized(program, len(batches[0]))
        self.values = [replay.start(self.program, [batches[0]])]
        self._waiting, self._position = list(batches[1:]), 0

    def advance(self, tensors: replay.Tensors, op: int) -> None:
        """Run all of them up to an operator; those that waited join where there is room for them."""
        for values in self.values:
            replay.run(self.program, values, tensors, self._position, op)
        self._position = op
        live = sum(t.numel() for t in self.values[0].values())
        while self._waiting and (len(self.values) + 1) * live <= room(self.program.device, _LIVE):
            self.values.append(replay.start(self.program, [self._waiting.pop(0)]))
            replay.run(self.program, self.values[-1], tensors, 0, op)

    def pixels(self, consumer: ConsumerLayer, generator: torch.Generator) -> SampleMoments:
        """Return the moments of the channels that a consumer sees."""
        moments = SampleMoments(len(consumer.units))
        most = max(30 * len(consumer.units), 200_000) // len(self.values)
        for values in self.values:
            moments.add(pixels(values[consumer.value], consumer.axis, most, generator))
        return moments


@dataclass(eq=False)
class ConsumerMoments:
    """The weights of a network and, by the operators of consumers seen so far, the moments of what they see."""

    tensors: replay.Tensors
    fisher: dict[int, Tensor]  # of the consumers' outputs
    means: dict[int, Tensor] = field(default_factory=dict)
    covariances: dict[int, Tensor] = field(default_factory=dict)
    strengths: dict[int, float] = field(default_factory=dict)  # of the ridge with which channels are mixed

    def note(
        self,
        consumer: ConsumerLayer,
        fit: BatchedForward,
        check: BatchedForward | None,
        generator: torch.Generator,
    ) -> None:
        """Note what a consumer sees, and how strong a ridge lets half of its channels stand in for the other half."""
        if len(consumer.units) > _LARGEST:
            return
        seen = fit.pixels(consumer, generator)
        checked = None if check is None else check.pixels(consumer, generator)
        self.means[consumer.op], self.covariances[consumer.op] = seen.mean(), seen.covariance()
        kept, removed = torch.randperm(len(consumer.units), generator=generator).tensor_split(2)
        if checked is None or not len(removed):
            self.strengths[consumer.op] = CAREFUL
            return
        a, b = (
            removed_channel_statistics(m.count, m.mean(), m.covariance(), kept, removed)
            for m in (seen, checked)
        )
        power = self.kernels(consumer).diagonal()[removed]
        nothing = a.mean.new_zeros(len(kept), len(removed))
        self.strengths[consumer.op] = held_out_strength(a, b, nothing, power)[0]

    def fisher_of(self, consumer: ConsumerLayer) -> Tensor:
        """Return the Fisher information of a consumer's outputs; ones where it is not known."""
        weight = self.tensors[consumer.weight]
        outputs, found = weight.movedim(consumer.weight_axis, 1).shape[0], self.fisher.get(consumer.op)
        return exact(weight.new_ones(outputs)) if found is None or len(found) != outputs else found

    def kernels(self, consumer: ConsumerLayer) -> Tensor:
        """Return B of a consumer, its outputs weighted by their Fisher information."""
        weight = exact(self.tensors[consumer.weight].movedim(consumer.weight_axis, 1))
        weight = weight.reshape(*weight.shape[:2], -1) * self.fisher_of(consumer).sqrt().reshape(-1, 1, 1)
        kernels = weight.new_zeros(len(consumer.units), len(consumer.units))
        index = torch.from_numpy(consumer.weight_index)
        for outputs, positions in consumer.blocks(len(weight)):
            flat = weight[outputs][:, index[positions]].transpose(0, 1).flatten(1)
            kernels[positions[:, None], positions] = flat @ flat.T
        return kernels

    def mixed(self, consumer: ConsumerLayer, gone: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return a consumer's kernel in which channels stand in for those that left, and the constant."""
        weight = self.tensors[consumer.weight]
        stand_in: Replacement = zero_replacement
        if consumer.op in self.covariances:
            stand_in = regression(
                self.means[consumer.op], self.covariances[consumer.op], self.strengths[consumer.op]
            )
        new, shift = absorb(
            weight.movedim(consumer.weight_axis, 1), consumer, ~np.isin(consumer.units, gone), stand_in
        )
        return new.movedim(1, consumer.weight_axis).contiguous(), shift

    def eliminate(self, readers: GroupConsumers, g: int, steps: int | None = None) -> Elimination:
        """Return the order in which channels of a group leave while others are mixed in their place."""
        consumers = [s for s in readers.of[g] if s.op in self.covariances]
        return backward_elimination(
            [ridge(self.covariances[s.op], self.strengths[s.op]) for s in consumers],
            [self.kernels(s) for s in consumers],
            [readers.units(g, s) for s in consumers],
            readers.groups[g].width,
            free_units(readers.groups[g]),
            steps,
        )
