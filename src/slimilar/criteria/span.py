r"""Remove what the others span, where the output feels it least.

A channel is redundant when the others of its layer can stand in for it. For every group, channels leave one by one
by backward elimination on the covariance of what its readers see, weighted by their kernels. How far each group may
go is settled at the network's output: for some widths, the group alone is pruned, its readers make up for it, and
the divergence of the output from the original's is measured. Groups then shrink step by step where a FLOP costs the
least divergence; the height of a step is its place in that sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slimilar import replay
from slimilar.cost import CostModel
from slimilar.criteria.base import Sight, Weights, free_units
from slimilar.errors import InvalidInput
from slimilar.groups import ChannelGroup
from slimilar.similarity import NOBODY, RemovalOrder
from slimilar.substitute.linear import absorb, regression, scale_of, silence
from slimilar.substitute.sites import Site, find_sites, pixels
from slimilar.substitute.solve import Elimination, Moments, backward_elimination

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CHUNKS = 24  # steps of the descent in each group
_EFFORT = 4e12  # FLOPs spent on measuring divergence; fewer pictures and widths where the network is large
_LARGEST = 4096  # positions of a reader whose covariance is worth holding


@dataclass(frozen=True)
class Span:
    """Backward elimination, with widths by the divergence measured at the output."""

    name: str = "span"
    effort: float = _EFFORT

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        if weights.sight is None:
            raise InvalidInput(
                'criterion "span" looks at activations: pass calibration= with unlabelled pictures'
            )
        with torch.no_grad():
            scan = _Scan(groups, weights, weights.sight, self.effort)
            measured = [g for g in range(len(groups)) if scan.sites_of[g]]
            damage = scan.damage()
        heights = descend(groups, measured, scan, damage, weights.sight.costs)
        return [
            _order(scan.eliminations[g], heights[g]) if g in heights else "nobody reads these channels"
            for g in range(len(groups))
        ]


def _order(found: Elimination, heights: Floats) -> RemovalOrder:
    return RemovalOrder(found.removed, heights, np.full(len(heights), NOBODY))


class _Scan:
    """Moments of what every reader sees, elimination orders, and the divergence that pruning a group alone causes."""

    def __init__(self, groups: Sequence[ChannelGroup], weights: Weights, sight: Sight, effort: float) -> None:
        self.groups, self.sight = groups, sight
        self.tensors = {name: t.detach() for name, t in weights.tensors.items()}
        found = find_sites(sight.trace, sight.grouping, sight.tape)
        self.sites = [s for s in found if (s.units >= 0).any()]
        self.starts = [sight.grouping.offsets[list(sight.grouping.groups).index(g)] for g in groups]
        self.sites_of = [
            [s for s in self.sites if ((s.units >= a) & (s.units < a + g.width)).any()]
            for a, g in zip(self.starts, groups, strict=True)
        ]
        self._plan_effort(effort)
        self.means: dict[int, Tensor] = {}
        self.covariances: dict[int, Tensor] = {}
        self._look()
        self.eliminations = [self._eliminate(g) for g in range(len(groups))]

    def _plan_effort(self, effort: float) -> None:
        """Choose how many pictures and widths the measuring can afford."""
        whole = self.sight.costs.at(np.ones(self.sight.grouping.unit_count, np.bool_)).flops
        size = len(self.sight.batches[0])
        for widths in (10, 6, 4):
            pictures = effort / (0.5 * whole * max(1, len(self.groups)) * widths)
            if pictures >= 64 or widths == 4:
                break
        self.fractions = np.linspace(0, 0.95, widths + 1)[1:]
        self.pictures = int(np.clip(pictures, 8, 256))
        count = max(1, self.pictures // size)
        self.batches = [b[: self.pictures] if self.pictures < size else b for b in self.sight.batches[:count]]

    # --- what readers see -----------------------------------------------------------------------------------

    def _look(self) -> None:
        found = {s.op: Moments(len(s.units)) for s in self.sites if len(s.units) <= _LARGEST}
        last = max((s.op for s in self.sites), default=0)
        for i, batch in enumerate(self.sight.batches):
            generator = torch.Generator().manual_seed(self.sight.seed + i)
            values = replay.start(self.sight.tape, [batch])
            position = 0
            for site in self.sites:
                replay.run(self.sight.tape, values, self.tensors, position, site.op)
                position = site.op
                if site.op in found:
                    most = max(30 * len(site.units), 200_000) // len(self.sight.batches)
                    found[site.op].add(pixels(values[site.value], site.axis, most, generator))
            if self.sight.progress is not None:
                self.sight.progress("looking at activations", i + 1, len(self.sight.batches))
        assert last >= 0
        self.means = {op: m.mean() for op, m in found.items()}
        self.covariances = {op: m.covariance() for op, m in found.items()}

    def _kernels(self, site: Site) -> Tensor:
        """Return B of a reader, its outputs scaled as the batch norm behind it scales them."""
        weight = self.tensors[site.weight].movedim(site.weight_axis, 1).double()
        weight = weight.reshape(*weight.shape[:2], -1)
        if site.norm is not None:
            scale = scale_of(self.sight.tape, self.tensors, site.norm).double()
            weight = weight * scale.reshape(-1, 1, 1) if len(scale) == len(weight) else weight
        kernels = torch.zeros(len(site.units), len(site.units), dtype=torch.float64)
        index = torch.from_numpy(site.weight_index)
        for outputs, positions in site.blocks(len(weight)):
            flat = weight[outputs][:, index[positions]].transpose(0, 1).flatten(1)
            kernels[positions[:, None], positions] = flat @ flat.T
        return kernels

    def _eliminate(self, g: int) -> Elimination:
        group, start = self.groups[g], self.starts[g]
        sites = [s for s in self.sites_of[g] if s.op in self.covariances]
        units = [
            np.where((s.units >= start) & (s.units < start + group.width), s.units - start, -1) for s in sites
        ]
        return backward_elimination(
            [self.covariances[s.op] for s in sites],
            [self._kernels(s) for s in sites],
            units,
            group.width,
            free_units(group),
        )

    # --- what the output feels ------------------------------------------------------------------------------

    def damage(self) -> list[Floats]:
        """Return for every group the divergence at each of the measured fractions."""
        found = [np.zeros(len(self.fractions)) for _ in self.groups]
        tape = replay.resized(self.sight.tape, len(self.batches[0]))
        tasks = sorted((s[0].op, g) for g, s in enumerate(self.sites_of) if s)
        for b, batch in enumerate(self.batches):
            reference = replay.start(tape, [batch])
            replay.run(tape, reference, self.tensors)
            wanted = [reference[v] for v in tape.outputs]
            values, position = replay.start(tape, [batch]), 0
            for i, (op, g) in enumerate(tasks):
                replay.run(tape, values, self.tensors, position, op)
                position = op
                for f, fraction in enumerate(self.fractions):
                    found[g][f] += self._divergence(tape, g, float(fraction), dict(values), op, wanted)
                if self.sight.progress is not None:
                    done = b * len(tasks) + i + 1
                    self.sight.progress("measuring divergence", done, len(self.batches) * len(tasks))
        return [np.maximum.accumulate(d / len(self.batches)) for d in found]

    def _divergence(
        self,
        tape: replay.Tape,
        g: int,
        fraction: float,
        values: replay.Values,
        op: int,
        wanted: Sequence[Tensor],
    ) -> float:
        gone = self.eliminations[g].removed[: round(fraction * len(self.eliminations[g].removed))]
        if len(gone) == 0:
            return 0.0
        tensors, constants = dict(self.tensors), {}
        for site in self.sites_of[g]:
            constant = self._stand_in(site, gone + self.starts[g], tensors)
            if constant is not None:
                constants[site.op] = constant
            replay.refresh(tape, site.op, site.value, values, tensors)
        replay.run(tape, values, tensors, op, constants=constants)
        return divergence([values[v] for v in tape.outputs], wanted)

    def _stand_in(self, site: Site, gone: Ints, tensors: dict[str, Tensor]) -> Tensor | None:
        """Mix the channels that stay at a reader for those that left; return the constant for its output."""
        stays = ~np.isin(site.units, gone)
        weight = tensors[site.weight].movedim(site.weight_axis, 1)
        if site.op in self.covariances:
            stand_in = regression(self.means[site.op], self.covariances[site.op], 1e-3)
        else:
            stand_in = silence
        new, shift = absorb(weight, site, stays, stand_in)
        tensors[site.weight] = new.movedim(1, site.weight_axis).contiguous()
        return shift


def divergence(given: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return how far outputs are from the original's: KL divergence of class scores, else relative squared error."""
    total = 0.0
    for a, b in zip(given, wanted, strict=True):
        if not a.is_floating_point():
            continue
        if a.ndim == 2 and a.shape[1] > 1:
            total += float(
                functional.kl_div(a.log_softmax(1), b.log_softmax(1), log_target=True, reduction="batchmean")
            )
        else:
            total += float((a - b).square().sum() / b.square().sum().clamp_min(1e-12))
    return total if np.isfinite(total) else 1e6


# --- where to shrink --------------------------------------------------------------------------------------------


def descend(
    groups: Sequence[ChannelGroup],
    measured: Sequence[int],
    scan: _Scan,
    damage: Sequence[Floats],
    costs: CostModel,
) -> dict[int, Floats]:
    """Shrink groups where a FLOP costs the least divergence; return each step's place in the sequence, in [0, 1)."""
    widths = _Widths(costs, [(scan.starts[g], groups[g].width) for g in measured])
    slopes = {g: _slopes(scan.eliminations[g].error, scan.fractions, damage[g]) for g in measured}
    chunk = {g: max(1, len(slopes[g]) // _CHUNKS) for g in measured}
    done, sequence = dict.fromkeys(measured, 0), []
    while open_groups := [g for g in measured if done[g] < len(slopes[g])]:
        saving = widths.saving({g: groups[g].width - done[g] for g in measured})
        best = min(open_groups, key=lambda g: slopes[g][done[g]] / max(saving[g], 1e-9))
        count = min(chunk[best], len(slopes[best]) - done[best])
        done[best] += count
        sequence.append((best, count))
    total = sum(n for _, n in sequence)
    heights: dict[int, list[float]] = {g: [] for g in measured}
    place = 0
    for g, count in sequence:
        heights[g] += [(place + i) / total for i in range(count)]
        place += count
    return {g: np.array(h) for g, h in heights.items()}


def _slopes(error: Floats, fractions: Floats, damage: Floats) -> Floats:
    """Return the divergence that each step adds, never falling: between measured widths it follows the error."""
    steps = len(error)
    at = np.round(fractions * steps).astype(int)
    known = [(0.0, 0.0)] + [(float(error[k - 1]), float(d)) for k, d in zip(at, damage, strict=True) if k > 0]
    x, y = np.array(known).T
    x = np.maximum.accumulate(x) + np.arange(len(x)) * 1e-12 * max(1e-12, float(x.max()))
    curve = np.append(0.0, np.interp(error, x, y, right=float(y[-1])))
    beyond = error > x[-1]  # past the last measured width, go on at least as steeply
    if beyond.any() and len(x) > 1:
        rate = (y[-1] - y[-2]) / max(x[-1] - x[-2], 1e-30)
        curve[1:][beyond] = y[-1] + rate * (error[beyond] - x[-1])
    return _lower_hull_slopes(curve)


def _lower_hull_slopes(curve: Floats) -> Floats:
    """Return the slopes of the largest convex curve below a given one, one for each step."""
    hull = [0]
    for i in range(1, len(curve)):
        while len(hull) > 1 and (curve[hull[-1]] - curve[hull[-2]]) * (i - hull[-1]) >= (
            curve[i] - curve[hull[-1]]
        ) * (hull[-1] - hull[-2]):
            hull.pop()
        hull.append(i)
    slopes = [(curve[b] - curve[a]) / (b - a) for a, b in pairwise(hull) for _ in range(b - a)]
    rising: Floats = np.maximum(np.array(slopes), 0.0)
    return rising


class _Widths:
    """FLOPs as a smooth function of group widths, to see what removing one unit of each group saves."""

    def __init__(self, costs: CostModel, spans: Sequence[tuple[int, int]]) -> None:
        self.terms = [(t.flops, t.vectors) for t in costs.terms if t.flops]
        self.spans = spans
        self.share = np.zeros((len(costs.vectors), len(spans)))
        self.size = np.array([len(v) for v in costs.vectors], np.float64)
        for v, units in enumerate(costs.vectors):
            for g, (start, width) in enumerate(spans):
                self.share[v, g] = ((units >= start) & (units < start + width)).sum() / width

    def saving(self, widths: dict[int, int]) -> dict[int, float]:
        """Return the FLOPs that one more unit of each group would save."""
        lost = np.array([w for _, w in self.spans], np.float64) - np.array(list(widths.values()), np.float64)
        size = self.size - self.share @ lost
        gradient = np.zeros(len(size))
        for flops, vectors in self.terms:
            for i, v in enumerate(vectors):
                others = [size[u] for j, u in enumerate(vectors) if j != i]
                gradient[v] += flops * float(np.prod(others))
        return dict(zip(widths, (gradient @ self.share).tolist(), strict=True))
