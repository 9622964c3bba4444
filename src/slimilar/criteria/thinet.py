r"""ThiNet (Luo et al., 2017): keep what the next layer needs.

Of a layer's channels the set T leaves that changes the next layer's output least on sampled places,
$$\min_T E\Big[\big(\sum_{c \in T} \hat{x}_c\big)^2\Big],$$
with $\hat{x}_c$ the part of channel c in what a consumer writes. T grows greedily, one channel after the other. What is
left is then scaled by least squares; here it is fitted anew, by `reconstruction="least-squares"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slimilar.criteria.base import Facts, Floats, Ints
from slimilar.criteria.contributions import ByContribution


@dataclass(frozen=True)
class ThiNet(ByContribution):
    """Remove, greedily, what the next layer's output misses least; a height is a share of the layer."""

    name: str = "thinet"
    facts: ClassVar[Facts] = Facts(
        "Channels with the least effect on the next layer's output are removed greedily, the same share per layer.",
        needs="images",
        tag="TN",
        reconstruction="least-squares",
    )

    def leaving(self, gram: Floats, free: Ints) -> Ints:
        """Return the units in the order of the greedy search."""
        return greedy(gram, free)


def greedy(gram: Floats, free: Ints) -> Ints:
    r"""Return the order in which channels leave: at each step T gains the one with the least $1_T^\top G 1_T$.

    >>> greedy(np.array([[4.0, -3.0, 0.0], [-3.0, 4.0, 0.0], [0.0, 0.0, 3.0]]), np.array([0, 1, 2])).tolist()
    [2, 0, 1]
    """
    gain = np.diagonal(gram).astype(np.float64)
    left = np.zeros(len(gram), np.bool_)
    left[free] = True
    found = []
    for _ in range(len(free)):
        best = int(np.argmin(np.where(left, gain, np.inf)))
        left[best] = False
        gain = gain + 2 * gram[best]
        found.append(best)
    return np.array(found, np.int64)
