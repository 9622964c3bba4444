"""A group that one consumer alone reads: its channels leave by what that consumer's refitted kernel loses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration.consumers import ConsumerLayer, patches, pixels
from slimilar.criteria.base import free_units
from slimilar.criteria.consumer_moments import CAREFUL, BatchedForward, ConsumerMoments
from slimilar.criteria.group_consumers import GroupConsumers
from slimilar.criteria.scan_images import ScanImages
from slimilar.reconstruction.ridge import Statistics, held_out_strength
from slimilar.reconstruction.solvers import (
    Elimination,
    SampleMoments,
    block_elimination,
    ridge,
    unknowns_of,
)
from slimilar.utils.precision import exact

_ROWS = 4  # patches for each unknown


@dataclass(frozen=True, eq=False)
class RefittedKernel:
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


@dataclass(frozen=True, eq=False)
class Refitter:
    """Refits the only consumer of a group, on images that have come as far as that."""

    readers: GroupConsumers
    seen: ConsumerMoments
    images: ScanImages
    generator: torch.Generator

    def refit(
        self, g: int, consumer: ConsumerLayer, fit: BatchedForward, check: BatchedForward
    ) -> tuple[Elimination, dict[int, RefittedKernel]]:
        """Return the order in which a group's channels leave, and the kernel at some widths."""
        taps = self.seen.tensors[consumer.weight][0, 0].numel()
        start, free = self.readers.starts[g], free_units(self.readers.groups[g])
        steps, width = len(free), len(consumer.units)
        # a kernel of too many unknowns is not refitted as a whole: until few are left, channels are mixed
        early = min(max(0, width - max(1, self.images.unknowns // taps)), steps)
        first = self.seen.eliminate(self.readers, g, early)
        left = np.flatnonzero(~np.isin(consumer.units, first.removed + start))
        at = torch.from_numpy(left)
        moments, checked = self._patches(consumer, at, fit), self._patches(consumer, at, check)
        mean, covariance = moments.mean(), moments.covariance()
        inside = ridge(covariance, self._strength(consumer, at, taps, moments, checked))
        mixed, shift = self.seen.mixed(consumer, first.removed + start)
        kernel = exact(mixed.index_select(1, at.to(mixed.device)).flatten(1).T)
        fixed = torch.from_numpy(~np.isin(consumer.units[left] - start, free))
        stops = [width - round(float(f) * steps) for f in self.images.fractions]
        found = block_elimination(
            inside, inside @ kernel, taps, self.seen.fisher_of(consumer), max(1, width - steps), fixed, stops
        )
        kernels = {}
        for count, (chosen, refit) in found.fits.items():
            unknowns = unknowns_of(chosen, taps)
            constant = mean @ kernel - mean[unknowns] @ refit.to(mean)
            kernels[count] = RefittedKernel(at[chosen], refit, shift + constant.to(shift))
        order = consumer.units[left[found.removed]] - start
        rest = np.setdiff1d(free, np.append(first.removed, order))
        base = float(first.error[-1]) if early else 0.0
        error = base + np.cumsum(np.append(found.cost, np.full(len(rest), found.cost[-1:].sum())))
        removed = np.concatenate([first.removed, order, rest])
        return Elimination(removed, np.append(first.error, error)), kernels

    def _patches(self, consumer: ConsumerLayer, left: Tensor, images: BatchedForward) -> SampleMoments:
        """Return the moments of the patches that a consumer sees of some channels."""
        instruction, weight = images.program.instructions[consumer.op], self.seen.tensors[consumer.weight]
        size = len(left) * weight[0, 0].numel()
        moments = SampleMoments(size)
        most = -(-_ROWS * size // len(images.values))
        trace = images.program.trace
        places = int(np.prod(trace.values[trace.ops[consumer.op].outputs[0]].shape[2:]))
        for values in images.values:
            x = values[consumer.value]
            if weight.ndim == 2:
                moments.add(pixels(x, consumer.axis, most, self.generator).index_select(1, left.to(x.device)))
                continue
            each = max(1, min(places, -(-most // len(x))))
            step = max(1, 4_000_000 // (each * size))
            for first in range(0, len(x), step):
                chosen = torch.randperm(places, generator=self.generator)[:each]
                moments.add(
                    patches(x[first : first + step], instruction, tuple(weight.shape[2:]), chosen, left)
                )
        return moments

    def _strength(
        self, consumer: ConsumerLayer, left: Tensor, taps: int, seen: SampleMoments, checked: SampleMoments
    ) -> float:
        """Return the ridge with which half of the channels do best, on held-out images, what all of them did."""
        chosen, gone = torch.randperm(len(left), generator=self.generator).tensor_split(2)
        if self.images.single or not len(gone):
            return CAREFUL
        weight = self.seen.tensors[consumer.weight]
        kernel = exact(weight.index_select(1, left.to(weight.device)).flatten(1).T)
        at = unknowns_of(chosen.sort().values, taps)
        a, b = _reading(seen, kernel, at), _reading(checked, kernel, at)
        return held_out_strength(a, b, kernel[at], self.seen.fisher_of(consumer))[0]


def _reading(seen: SampleMoments, kernel: Tensor, at: Tensor) -> Statistics:
    """Return the statistics with which some unknowns are fitted to what a kernel makes of all."""
    mean, covariance = seen.mean(), seen.covariance()
    return Statistics(seen.count, mean[at], mean @ kernel, covariance[at][:, at], covariance[at] @ kernel)
