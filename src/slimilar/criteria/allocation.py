"""Where to shrink: groups leave channels where a FLOP costs the least divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slimilar.criteria.sensitivity import Scan
from slimilar.planning.cost import CostModel
from slimilar.planning.plan import Plan

Floats = NDArray[np.float64]

_CHUNKS = 24  # steps of the descent in each group


@dataclass(frozen=True, eq=False)
class AllocationSteps:
    """The steps of a group: each one's place in the sequence of all groups, in [0, 1), and the divergence it adds."""

    heights: Floats
    damage: Floats


def allocate(scan: Scan, damage: Sequence[Floats], costs: CostModel) -> dict[int, AllocationSteps]:
    """Shrink groups where a FLOP costs the least divergence; return the steps of each group that is read."""
    groups, starts = scan.readers.groups, scan.readers.starts
    measured = [g for g in range(len(groups)) if scan.readers.of[g]]
    spans = [(starts[g], groups[g].width) for g in measured]
    slopes = [_slopes(scan.eliminations[g].error, scan.images.fractions, damage[g]) for g in measured]
    heights = _descend(spans, slopes, costs)
    return {g: AllocationSteps(h, s) for g, h, s in zip(measured, heights, slopes, strict=True)}


def _descend(spans: Sequence[tuple[int, int]], slopes: Sequence[Floats], costs: CostModel) -> list[Floats]:
    """Return the heights of the steps of groups, given as first channel and width, by what each step adds."""
    widths = _Widths(costs, spans)
    chunk = [max(1, len(steps) // _CHUNKS) for steps in slopes]
    done, sequence = [0] * len(spans), []
    while open_groups := [g for g, steps in enumerate(slopes) if done[g] < len(steps)]:
        saving = widths.saving([width - n for (_, width), n in zip(spans, done, strict=True)])
        best = min(open_groups, key=lambda g: slopes[g][done[g]] / max(saving[g], 1e-9))
        count = min(chunk[best], len(slopes[best]) - done[best])
        done[best] += count
        sequence.append((best, count))
    heights: list[list[float]] = [[] for _ in spans]
    total, place = sum(done), 0
    for g, count in sequence:
        heights[g] += [(place + i) / total for i in range(count)]
        place += count
    return [np.array(h) for h in heights]


def with_weights(plan: Plan, weights: Sequence[float]) -> Plan:
    """Return a plan in which the damage that was measured of each group counts so much; sizes follow from it anew."""
    damage = [
        w * order.damage for w, order in zip(weights, plan.orders, strict=True) if order.damage is not None
    ]
    spans = [(start, group.width) for start, group in zip(plan.starts, plan.groups, strict=True)]
    heights = _descend(spans, damage, plan.costs)
    orders = (
        replace(order, heights=h, damage=d) for order, h, d in zip(plan.orders, heights, damage, strict=True)
    )
    return replace(plan, orders=tuple(orders))


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
        self.flops, self.vectors = costs.products["flops"]
        self.spans = spans
        self.share = np.zeros((len(costs.vectors), len(spans)))
        self.size = np.array([len(v) for v in costs.vectors], np.float64)
        for v, units in enumerate(costs.vectors):
            for g, (start, width) in enumerate(spans):
                self.share[v, g] = ((units >= start) & (units < start + width)).sum() / width

    def saving(self, widths: Sequence[int]) -> list[float]:
        """Return the FLOPs that one more unit of each group would save."""
        lost = np.array([w for _, w in self.spans], np.float64) - np.array(widths, np.float64)
        size = np.append(self.size - self.share @ lost, 1.0)
        factors, gradient = size[self.vectors], np.zeros(len(size))
        for i, factor in enumerate(self.vectors.T):
            np.add.at(gradient, factor, self.flops * np.delete(factors, i, axis=1).prod(axis=1))
        saved: list[float] = (gradient[:-1] @ self.share).tolist()
        return saved
