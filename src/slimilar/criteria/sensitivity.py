"""Send images through a network: in which order channels leave, and how the output diverges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.batches import AFFORDED
from slimilar.calibration.consumers import ConsumerLayer, find_consumers, is_conv, patches, pixels
from slimilar.calibration.divergence import divergence
from slimilar.calibration.fisher import fisher_weights
from slimilar.calibration.holdout import hold_out
from slimilar.calibration.program import Program
from slimilar.criteria.base import Sight, Weights, free_units
from slimilar.graph.groups import ChannelGroup
from slimilar.reconstruction.channel_mixing import absorb, regression, zeros_instead
from slimilar.reconstruction.ridge import Statistics, held_out_strength, stand_in_statistics
from slimilar.reconstruction.solvers import (
    Elimination,
    SampleMoments,
    backward_elimination,
    block_elimination,
    ridge,
    unknowns_of,
)
from slimilar.utils.devices import room
from slimilar.utils.precision import exact

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LARGEST = 4096  # positions of a consumer whose covariance is worth holding
_UNKNOWNS = 4608  # of a kernel that is refitted as a whole, half as many in large networks; before, channels are mixed
_LIVE = 150_000_000  # numbers held of all images; where activations are large, some images join later
_ROWS = 4  # patches for each unknown
_CAREFUL = 1.0  # the ridge where there is no image to measure on

_NOTHING = Elimination(np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, eq=False)
class Refit:
    """A kernel on some of a consumer's channels, (unknowns, outputs), and its constant."""

    chosen: Tensor
    kernel: Tensor
    shift: Tensor

    def at(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return it in the shape of the whole weight, and the constant."""
        new = torch.zeros_like(weight)
        new[:, self.chosen] = self.kernel.T.reshape(len(weight), len(self.chosen), *weight.shape[2:]).to(
            weight
        )
        return new, self.shift


def consumer_positions(consumer: ConsumerLayer, start: int, gone: Ints) -> Ints:
    """Return the positions of a consumer at which some units of a group stand."""
    return np.flatnonzero(np.isin(consumer.units, gone + start))


class Scan:
    """Moments of what every consumer sees, elimination orders, and the divergence that pruning a group alone causes."""

    def __init__(self, groups: Sequence[ChannelGroup], weights: Weights, sight: Sight, effort: float) -> None:
        self.groups, self.sight = groups, sight
        self.tensors = {name: t.detach() for name, t in weights.tensors.items()}
        found = find_consumers(sight.trace, sight.grouping, sight.program)
        self.consumers = [s for s in found if (s.units >= 0).any()]
        self.starts = [sight.grouping.offsets[list(sight.grouping.groups).index(g)] for g in groups]
        self.consumers_of = [
            [s for s in self.consumers if ((s.units >= a) & (s.units < a + g.width)).any()]
            for a, g in zip(self.starts, groups, strict=True)
        ]
        parts = hold_out(sight.batches)
        self.alone = not parts.measure  # a single image: nothing to measure on but itself
        self.held_out = parts.measure or parts.fit
        self.looked, self.checked = self._afforded(parts.fit, 1.0), self._afforded(self.held_out, 1 / 3)
        large = len(self.looked) < len(parts.fit)
        self.unknowns = _UNKNOWNS // 2 if large else _UNKNOWNS
        self._plan_effort(effort)
        self.means: dict[int, Tensor] = {}
        self.covariances: dict[int, Tensor] = {}
        self.strengths: dict[int, float] = {}  # of the ridge with which a consumer's channels are mixed
        self.fisher = fisher_weights(
            replay.resized(sight.program, len(self.looked[0])), [s.op for s in self.consumers], self.tensors,
            self.looked[0], sight.seed,
        )  # fmt: skip
        self.eliminations: list[Elimination] = [_NOTHING] * len(groups)
        self.kernels: dict[tuple[int, int], Refit] = {}  # (group, channels left) -> its consumer's kernel
        self._look()
        for g in range(len(groups)):
            if self.eliminations[g] is _NOTHING:
                self.eliminations[g] = self._eliminate(g)

    def _afforded(self, batches: Sequence[Tensor], share: float) -> Sequence[Tensor]:
        """Return as many batches as one look at them may cost."""
        return batches[: max(1, int(share * AFFORDED / self._whole() / len(batches[0])))]

    def _whole(self) -> int:
        """Return the FLOPs of the network as it is, for one image."""
        return self.sight.costs.at(np.ones(self.sight.grouping.unit_count, np.bool_)).flops

    def _plan_effort(self, effort: float) -> None:
        """Choose how many images and widths the measuring can afford."""
        whole = self._whole()
        size = len(self.held_out[0])
        for widths, least in ((6, 64), (5, 32), (4, 16), (3, 0)):
            images = effort / (0.5 * whole * max(1, len(self.groups)) * widths)
            if images >= least:
                break
        self.fractions = np.linspace(0, 0.95, widths + 1)[1:]
        self.images = int(np.clip(images, 8, 256)) if widths > 3 else 8
        count = max(1, self.images // size)
        self.batches = [b[: self.images] if self.images < size else b for b in self.held_out[:count]]

    # --- what consumers see -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Walk through the network; a group with one consumer is settled when that is reached."""
        alone = self._alone()
        generator = torch.Generator().manual_seed(self.sight.seed)
        fit, held_out = (_States(self.sight.program, part) for part in (self.looked, self.checked))
        for i, consumer in enumerate(self.consumers):
            for states in (fit, held_out):
                states.advance(self.tensors, consumer.op)
            if len(consumer.units) <= _LARGEST:
                self._mix(consumer, fit, held_out, generator)
            if consumer.op in alone:
                self._refit(alone[consumer.op], consumer, fit, held_out, generator)
            if self.sight.progress is not None:
                self.sight.progress("looking at activations", i + 1, len(self.consumers))

    def _mix(
        self, consumer: ConsumerLayer, fit: _States, held_out: _States, generator: torch.Generator
    ) -> None:
        """Note what a consumer sees, and how strong a ridge lets half of its channels stand in for the other half."""
        seen, checked = (states.pixels(consumer, generator) for states in (fit, held_out))
        self.means[consumer.op], self.covariances[consumer.op] = seen.mean(), seen.covariance()
        kept, removed = torch.randperm(len(consumer.units), generator=generator).tensor_split(2)
        if self.alone or not len(removed):
            self.strengths[consumer.op] = _CAREFUL
            return
        a, b = (
            stand_in_statistics(m.count, m.mean(), m.covariance(), kept, removed) for m in (seen, checked)
        )
        power = self._kernels(consumer).diagonal()[removed]
        nothing = a.mean.new_zeros(len(kept), len(removed))
        self.strengths[consumer.op] = held_out_strength(a, b, nothing, power)[0]

    def _alone(self) -> dict[int, int]:
        """Return the consumers (by operator) that are the only one of their group, and whose kernel can be refitted."""
        found = {}
        for g, (start, group) in enumerate(zip(self.starts, self.groups, strict=True)):
            if len(self.consumers_of[g]) != 1:
                continue
            consumer, instruction = (
                self.consumers_of[g][0],
                self.sight.program.instructions[self.consumers_of[g][0].op],
            )
            mine = (consumer.units >= start) & (consumer.units < start + group.width)
            fits = is_conv(instruction) or "mm" in instruction.func.name()
            if (
                mine.all()
                and len(mine) == group.width
                and consumer.plain
                and consumer.weight_axis == 1
                and fits
            ):
                found[consumer.op] = g
        return found

    def _refit(
        self, g: int, consumer: ConsumerLayer, fit: _States, held_out: _States, generator: torch.Generator
    ) -> None:
        """Settle a group at its only consumer: channels leave by what the refitted kernel loses."""
        weight = self.tensors[consumer.weight]
        taps = weight[0, 0].numel()
        free = free_units(self.groups[g])
        steps, width = len(free), len(consumer.units)
        # a kernel of too many unknowns is not refitted as a whole: until few are left, channels are mixed
        early = min(max(0, width - max(1, self.unknowns // taps)), steps)
        first = self._eliminate(g, early)
        left = np.setdiff1d(np.arange(width), consumer_positions(consumer, self.starts[g], first.removed))
        seen = self._patches(consumer, torch.from_numpy(left), fit, generator)
        mean, covariance = seen.mean(), seen.covariance()
        checked = self._patches(consumer, torch.from_numpy(left), held_out, generator)
        inside = ridge(
            covariance, self._strength(consumer, torch.from_numpy(left), taps, seen, checked, generator)
        )
        mixed, shift = self._mixed(consumer, first.removed + self.starts[g])
        kernel = exact(mixed.index_select(1, torch.from_numpy(left).to(mixed.device)).flatten(1).T)
        fixed = torch.from_numpy(~np.isin(consumer.units[left] - self.starts[g], free))
        stops = [width - round(float(f) * steps) for f in self.fractions]
        found = block_elimination(
            inside, inside @ kernel, taps, self._fisher(consumer), max(1, width - steps), fixed, stops
        )
        for count, (chosen, refit) in found.fits.items():
            unknowns = unknowns_of(chosen, taps)
            constant = mean @ kernel - mean[unknowns] @ refit.to(mean)
            where = torch.from_numpy(left)[chosen]
            self.kernels[g, count] = Refit(where, refit, shift + constant.to(shift))
        order = consumer.units[left[found.removed]] - self.starts[g]
        rest = np.setdiff1d(free, np.append(first.removed, order))
        base = float(first.error[-1]) if early else 0.0
        error = base + np.cumsum(np.append(found.cost, np.full(len(rest), found.cost[-1:].sum())))
        self.eliminations[g] = Elimination(
            np.concatenate([first.removed, order, rest]), np.append(first.error, error)
        )

    def _patches(
        self, consumer: ConsumerLayer, left: Tensor, states: _States, generator: torch.Generator
    ) -> SampleMoments:
        """Return the moments of the patches that a consumer sees of some channels."""
        instruction, weight = self.sight.program.instructions[consumer.op], self.tensors[consumer.weight]
        size = len(left) * weight[0, 0].numel()
        moments = SampleMoments(size)
        most = -(-_ROWS * size // len(states.values))
        places = self._places(consumer)
        for values in states.values:
            x = values[consumer.value]
            if weight.ndim == 2:
                moments.add(pixels(x, consumer.axis, most, generator).index_select(1, left.to(x.device)))
                continue
            each = max(1, min(places, -(-most // len(x))))
            step = max(1, 4_000_000 // (each * size))
            for first in range(0, len(x), step):
                chosen = torch.randperm(places, generator=generator)[:each]
                moments.add(
                    patches(x[first : first + step], instruction, tuple(weight.shape[2:]), chosen, left)
                )
        return moments

    def _strength(
        self,
        consumer: ConsumerLayer,
        left: Tensor,
        taps: int,
        seen: SampleMoments,
        checked: SampleMoments,
        generator: torch.Generator,
    ) -> float:
        """Return the ridge with which half of the channels do best, on held-out images, what all of them did."""
        chosen, gone = torch.randperm(len(left), generator=generator).tensor_split(2)
        if self.alone or not len(gone):
            return _CAREFUL
        weight = self.tensors[consumer.weight]
        kernel = exact(weight.index_select(1, left.to(weight.device)).flatten(1).T)
        at = unknowns_of(chosen.sort().values, taps)
        a, b = _reading(seen, kernel, at), _reading(checked, kernel, at)
        return held_out_strength(a, b, kernel[at], self._fisher(consumer))[0]

    def _places(self, consumer: ConsumerLayer) -> int:
        """Return at how many places of a image a consumer looks."""
        trace = self.sight.trace
        return int(np.prod(trace.values[trace.ops[consumer.op].outputs[0]].shape[2:]))

    def _fisher(self, consumer: ConsumerLayer) -> Tensor:
        weight = self.tensors[consumer.weight]
        outputs, found = weight.movedim(consumer.weight_axis, 1).shape[0], self.fisher.get(consumer.op)
        return exact(weight.new_ones(outputs)) if found is None or len(found) != outputs else found

    def _mixed(self, consumer: ConsumerLayer, gone: Ints) -> tuple[Tensor, Tensor]:
        """Return a consumer's kernel in which channels stand in for those that left, and the constant."""
        weight = self.tensors[consumer.weight]
        if consumer.op in self.covariances:
            stand_in = regression(
                self.means[consumer.op], self.covariances[consumer.op], self.strengths[consumer.op]
            )
        else:
            stand_in = zeros_instead
        new, shift = absorb(
            weight.movedim(consumer.weight_axis, 1), consumer, ~np.isin(consumer.units, gone), stand_in
        )
        return new.movedim(1, consumer.weight_axis).contiguous(), shift

    def _kernels(self, consumer: ConsumerLayer) -> Tensor:
        """Return B of a consumer, its outputs weighted by their Fisher information."""
        weight = exact(self.tensors[consumer.weight].movedim(consumer.weight_axis, 1))
        weight = weight.reshape(*weight.shape[:2], -1) * self._fisher(consumer).sqrt().reshape(-1, 1, 1)
        kernels = weight.new_zeros(len(consumer.units), len(consumer.units))
        index = torch.from_numpy(consumer.weight_index)
        for outputs, positions in consumer.blocks(len(weight)):
            flat = weight[outputs][:, index[positions]].transpose(0, 1).flatten(1)
            kernels[positions[:, None], positions] = flat @ flat.T
        return kernels

    def _eliminate(self, g: int, steps: int | None = None) -> Elimination:
        """Return the order in which channels of a group leave while others are mixed in their place."""
        group, start = self.groups[g], self.starts[g]
        consumers = [s for s in self.consumers_of[g] if s.op in self.covariances]
        units = [
            np.where((s.units >= start) & (s.units < start + group.width), s.units - start, -1)
            for s in consumers
        ]
        return backward_elimination(
            [ridge(self.covariances[s.op], self.strengths[s.op]) for s in consumers],
            [self._kernels(s) for s in consumers],
            units,
            group.width,
            free_units(group),
            steps,
        )

    # --- divergence at the output ---------------------------------------------------------------------------

    def damage(self) -> list[Floats]:
        """Return for every group the divergence at each of the measured fractions."""
        found = [np.zeros(len(self.fractions)) for _ in self.groups]
        program = replay.resized(self.sight.program, len(self.batches[0]))
        tasks = sorted((s[0].op, g) for g, s in enumerate(self.consumers_of) if s)
        for b, batch in enumerate(self.batches):
            reference = replay.start(program, [batch])
            replay.run(program, reference, self.tensors)
            wanted = [reference[v] for v in program.outputs]
            values, position = replay.start(program, [batch]), 0
            for i, (op, g) in enumerate(tasks):
                replay.run(program, values, self.tensors, position, op)
                position = op
                for f, fraction in enumerate(self.fractions):
                    found[g][f] += self._divergence(program, g, float(fraction), dict(values), op, wanted)
                if self.sight.progress is not None:
                    done = b * len(tasks) + i + 1
                    self.sight.progress("measuring divergence", done, len(self.batches) * len(tasks))
        return [np.maximum.accumulate(d / len(self.batches)) for d in found]

    def _divergence(
        self,
        program: Program,
        g: int,
        fraction: float,
        values: replay.Values,
        op: int,
        wanted: Sequence[Tensor],
    ) -> float:
        steps = round(fraction * len(self.eliminations[g].removed))
        if steps == 0:
            return 0.0
        tensors, constants = dict(self.tensors), {}
        for consumer in self.consumers_of[g]:
            refit = (
                self.kernels.get((g, len(consumer.units) - steps)) if len(self.consumers_of[g]) == 1 else None
            )
            gone = self.eliminations[g].removed[:steps] + self.starts[g]
            tensors[consumer.weight], constants[consumer.op] = (
                self._mixed(consumer, gone) if refit is None else refit.at(tensors[consumer.weight])
            )
            replay.refresh(program, consumer.op, consumer.value, values, tensors)
        replay.run(program, values, tensors, op, constants=constants)
        return divergence([values[v] for v in program.outputs], wanted)


class _States:
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


def _reading(seen: SampleMoments, kernel: Tensor, at: Tensor) -> Statistics:
    """Return the statistics with which some unknowns are fitted to what a kernel makes of all."""
    mean, covariance = seen.mean(), seen.covariance()
    return Statistics(seen.count, mean[at], mean @ kernel, covariance[at][:, at], covariance[at] @ kernel)
