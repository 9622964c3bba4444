"""Layers act together: how much the depth of a layer counts in the allocation, found on held-out images.

The scan measures what the output loses if one layer alone is pruned. In the pruned network later layers are refitted
as well and make up for part of what earlier ones lose, or errors of many layers add up. How the two weigh differs from
network to network and from budget to budget. So the measured losses are multiplied by $e^{t(x - 1/2)}$, with x = 0 at
the first layer and 1 at the last one: t > 0 prunes early layers more, t < 0 late ones. Each t is judged as plans are
compared: a quick fit to some images, the divergence on others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from slimilar.criteria.allocation import with_weights
from slimilar.errors import UnreachableBudget
from slimilar.planning.plan import Plan

_FARTHEST = 4  # t: the last layer then counts 55 times as much as the first
MOST_TRIED = 2 + _FARTHEST  # 0, one step in the wrong direction, and all in the other
_SURELY = 1.5  # standard errors of the mean difference, image by image


@dataclass(frozen=True)
class DepthWeight:
    """The exponent t that did best, and the divergence on held-out images with t = 0 and with it."""

    exponent: float
    before: float
    after: float


def weighted_by_depth(plan: Plan, exponent: float) -> Plan:
    """Return a plan in which the measured losses of layers count by their depth."""
    depth = np.linspace(-0.5, 0.5, len(plan.groups))
    return with_weights(plan, np.exp(exponent * depth).tolist())


def find_depth_weight(gaps: Callable[[float], Tensor]) -> DepthWeight:
    """Return the exponent of the least divergence: steps of 1 from 0, in the direction that gains, while they gain.

    `gaps` returns the divergence of every held-out image for an exponent. What is within noise of 0 is not taken.

    >>> import torch
    >>> noise = torch.tensor([0.01, -0.01, 0.02, -0.02])
    >>> find_depth_weight(lambda t: (t - 2) ** 2 + (1 + t) * noise)
    DepthWeight(exponent=2, before=4.0, after=0.0)
    """
    plain = gaps(0)
    found, least = 0, float(plain.mean())
    for direction in (1, -1):
        while abs(found) < _FARTHEST:
            try:
                tried = gaps(found + direction)
            except UnreachableBudget:
                break
            if not (float(tried.mean()) < least and _is_surely_less(tried, plain)):
                break
            found, least = found + direction, float(tried.mean())
        if found:
            break
    return DepthWeight(found, float(plain.mean()), least)


def _is_surely_less(gaps: Tensor, than: Tensor) -> bool:
    excess = gaps - than
    return len(excess) > 1 and bool(excess.mean() < -_SURELY * excess.std() / len(excess) ** 0.5)
