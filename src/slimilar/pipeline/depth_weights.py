"""Layers act together: how much the depth of a layer counts in the allocation, found on held-out images.

The scan measures what the output loses if one layer alone is pruned. In the pruned network later layers are refitted
as well and make up for part of what earlier ones lose. How much differs from network to network and from budget to
budget. So the measured losses are multiplied by $e^{t(x - 1/2)}$, with x = 0 at the first layer and 1 at the last one:
t > 0 prunes early layers more. Each t is judged as plans are compared: a quick fit to some images, the divergence on
others. A quick fit makes up for less than the real one, so it favours t < 0 wrongly (ResNet-20 at half of its FLOPs:
quick fits 0.48 -> 0.43 with t = -2, real ones 0.167 -> 0.227), and sees a gain with t > 0 only in spite of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from slimilar.calibration.divergence import surely_less
from slimilar.criteria.allocation import with_weights
from slimilar.errors import UnreachableBudget
from slimilar.planning.plan import Plan

_NEAR, _FAR, _FARTHER = 1, 2, 3  # t; with 2 the last layer counts seven times as much as the first
MOST_TRIED = 4  # how often a search asks for divergences


@dataclass(frozen=True)
class DepthWeight:
    """The exponent t that did best, and the divergence on held-out images with t = 0 and with it."""

    exponent: float
    before: float = 0.0
    after: float = 0.0


def weighted_by_depth(plan: Plan, exponent: float) -> Plan:
    """Return a plan in which the measured losses of layers count by their depth; with 0 as they are."""
    if not exponent:
        return plan
    depth = np.linspace(-0.5, 0.5, len(plan.groups))
    return with_weights(plan, np.exp(exponent * depth).tolist())


def find_depth_weight(gaps: Callable[[float], Tensor]) -> DepthWeight:
    """Return the exponent of the least divergence among 0 to 3; what is within noise of 0 is not taken.

    `gaps` returns the divergence of every held-out image for an exponent.

    >>> import torch
    >>> noise = torch.tensor([0.01, -0.01, 0.02, -0.02])
    >>> find_depth_weight(lambda t: 5 + (t - 3) ** 2 + (1 + t) * noise)
    DepthWeight(exponent=3, before=14.0, after=5.0)
    """
    plain, tried = gaps(0), {_FAR: _found(gaps, _FAR)}
    if _is_surely_less(tried[_FAR], plain):
        tried[_FARTHER] = _found(gaps, _FARTHER)
    if _mean(tried[_FAR]) <= _mean(tried.get(_FARTHER)) and not _is_surely_less(plain, tried[_FAR]):
        tried[_NEAR] = _found(gaps, _NEAR)
    better = {t: _mean(found) for t, found in tried.items() if _is_surely_less(found, plain)}
    best = min(better, key=lambda t: better[t], default=0)
    return DepthWeight(best, _mean(plain), better.get(best, _mean(plain)))


def _found(gaps: Callable[[float], Tensor], exponent: float) -> Tensor | None:
    """Return the divergences, or nothing where an exponent cannot reach the budget."""
    try:
        return gaps(exponent)
    except UnreachableBudget:
        return None


def _mean(gaps: Tensor | None) -> float:
    return math.inf if gaps is None else float(gaps.mean())


def _is_surely_less(gaps: Tensor | None, than: Tensor | None) -> bool:
    """Tell whether divergences are less by more than noise; those of an exponent that is out of reach are the most."""
    if gaps is None or than is None:
        return gaps is not None
    return surely_less(gaps, than)
