r"""Channel pruning by LASSO (He et al., 2017): which channels does the next layer's output need?

With $\hat{x}_c$ the part of channel c in what a consumer writes, and $y = \sum_c \hat{x}_c$,
$$\min_\beta \tfrac12 E\Big[\big(y - \sum_c \beta_c \hat{x}_c\big)^2\Big] + \lambda \lVert \beta \rVert_1$$
leaves, the larger $\lambda$, the fewer channels. The path of solutions is piecewise linear in $\lambda$ and is followed
from where all are zero: the channels that come in last leave first. What is left is then fitted to the output by
least squares: `reconstruction="least-squares"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slimilar.criteria.base import Facts, Floats, Ints
from slimilar.criteria.contributions import ByContribution

_RIDGE = 1e-6  # of the mean power of a channel: what a finite sample leaves uncertain anyway
_DEPENDENT = 1e-9  # a channel with less than this share of its power to itself is a combination of others


@dataclass(frozen=True)
class ChannelLasso(ByContribution):
    """Remove what LASSO gives up first as lambda grows; a height is a share of the layer."""

    name: str = "channel-lasso"
    facts: ClassVar[Facts] = Facts(
        "Channels that LASSO drops from the next layer's output are removed, the same share in every layer.",
        needs="images",
        tag="CP",
        reconstruction="least-squares",
    )

    def leaving(self, gram: Floats, free: Ints) -> Ints:
        """Return the units as LASSO gives them up."""
        return free[removal_sequence(gram[np.ix_(free, free)])]


def removal_sequence(gram: Floats) -> Ints:
    """Return channels as LASSO gives them up: never needed first, the first to come in last.

    >>> removal_sequence(np.diag([3.0, 0.0, 1.0, 2.0])).tolist()
    [1, 2, 3, 0]
    """
    level = _RIDGE * max(float(np.diagonal(gram).mean()), np.finfo(np.float64).tiny)
    entered: dict[int, int] = {}
    for _, beta in lasso_path(gram + level * np.eye(len(gram)), gram.sum(1)):
        for c in np.flatnonzero(beta):
            entered.setdefault(int(c), len(entered))
        if len(entered) == len(gram):
            break
    never = [c for c in np.argsort(np.diagonal(gram), kind="stable").tolist() if c not in entered]
    return np.array(never + sorted(entered, key=lambda c: -entered[c]), np.int64)


def lasso_path(gram: Floats, target: Floats) -> Iterator[tuple[float, Floats]]:
    r"""Yield the knots $(\lambda, \beta)$ of a LASSO, from the smallest lambda at which all are zero down to 0.

    $$\min_\beta \tfrac12 \beta^\top G \beta - t^\top \beta + \lambda \lVert \beta \rVert_1$$
    Between two knots the solution is linear in lambda. A channel that is a combination of those already there never
    comes in.

    >>> [(round(s, 6), b.round(6).tolist()) for s, b in lasso_path(np.diag([2.0, 1.0]), np.array([4.0, 1.0]))]
    [(4.0, [0.0, 0.0]), (1.0, [1.5, 0.0]), (0.0, [2.0, 1.0])]
    """
    walk = _PathState(gram, target)
    yield walk.strength, walk.beta.copy()
    for _ in range(8 * len(gram)):
        if walk.strength <= walk.least or not walk.step():
            return
        yield walk.strength, walk.beta.copy()


class _PathState:
    """The homotopy (LARS with drops): the active channels, their signs, and the inverse of their part of G."""

    def __init__(self, gram: Floats, target: Floats) -> None:
        self.gram, self.rest = gram, target.astype(np.float64)  # rest: the gradient that is left, t - G beta
        self.beta = np.zeros(len(gram))
        self.strength = float(np.abs(self.rest).max(initial=0.0))
        self.least = 1e-10 * self.strength
        self.active: list[int] = []
        self.signs = np.empty(0)
        self.inverse = np.empty((0, 0))
        self.out = np.diagonal(gram) <= 0  # never to come in
        if self.strength > 0:
            self._join(int(np.abs(self.rest).argmax()))

    def step(self) -> bool:
        """Go to the next knot; False if no channel is left."""
        if not self.active:
            return False
        direction = self.inverse @ self.signs
        slope = direction @ self.gram[self.active]
        join, length = self._next_to_join(slope)
        leaver = -1
        with np.errstate(divide="ignore", invalid="ignore"):
            until = -self.beta[self.active] / direction
        until[~(until > 1e-12 * self.strength) | (self.beta[self.active] == 0)] = np.inf
        if until.min() < length:
            leaver, length, join = int(until.argmin()), float(until.min()), -1
        self.beta[self.active] += length * direction
        self.rest -= length * slope
        self.strength -= length
        if leaver >= 0:
            self._drop(leaver)
        elif join >= 0:
            self._join(join)
        return True

    def _next_to_join(self, slope: Floats) -> tuple[int, float]:
        """Return the channel that enters next, and how far lambda falls until then; -1 if it falls to 0 before."""
        with np.errstate(divide="ignore", invalid="ignore"):
            above = (self.strength - self.rest) / (1 - slope)
            below = (self.strength + self.rest) / (1 + slope)
        tiny = 1e-12 * self.strength
        above[~(above > tiny)] = np.inf
        below[~(below > tiny)] = np.inf
        steps = np.minimum(above, below)
        steps[self.active] = np.inf
        steps[self.out] = np.inf
        best = int(steps.argmin())
        return (best, float(steps[best])) if steps[best] < self.strength else (-1, self.strength)

    def _join(self, c: int) -> None:
        """Add a channel, unless it is a linear combination of the active ones; border the inverse."""
        column = self.gram[self.active, c]
        against = self.inverse @ column
        own = float(self.gram[c, c] - column @ against)
        if own <= _DEPENDENT * self.gram[c, c]:
            self.out[c] = True
            return
        edge = np.append(-against, 1.0)
        size = len(self.active)
        inverse = np.zeros((size + 1, size + 1))
        inverse[:size, :size] = self.inverse
        self.inverse = inverse + np.outer(edge, edge) / own
        self.active.append(c)
        self.signs = np.append(self.signs, np.sign(self.rest[c]))

    def _drop(self, i: int) -> None:
        """Let the i-th active channel go; take its row and column out of the inverse."""
        self.beta[self.active[i]] = 0.0
        rest = np.delete(np.arange(len(self.active)), i)
        row = self.inverse[i]
        self.inverse = (self.inverse - np.outer(row, row) / row[i])[np.ix_(rest, rest)]
        self.signs = self.signs[rest]
        del self.active[i]
