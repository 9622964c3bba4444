r"""Least squares of a reader's whole kernel over the patches that it sees.

With rows x (patches of the channels that stay) and y (what the reader should write), the kernel is
$\arg\min_W E\lVert x W + b - y \rVert^2 + \lambda \lVert W - W_0 \rVert^2$ in closed form. Where a ReLU follows, what
the original keeps below its level counts only if the reader would rise above it; that is convex too, and a few steps
with the same factorisation reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slimilar.replay import Tape
from slimilar.substitute.aim import Aim
from slimilar.substitute.sites import Site, patches
from slimilar.substitute.solve import Moments, block_elimination, ridge

HELD = 80_000_000  # numbers of what one reader sees that are held at a time
PAIRED = 2 * HELD  # and of that together with what it should write, and where the ReLU behind it opens

_PIECE = 4096  # samples


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of what a reader sees and should write, in pieces: x, y, and the level of the ReLU behind (or None)."""

    x: list[Tensor]
    y: list[Tensor]
    level: list[Tensor | None]


@dataclass(frozen=True, eq=False)
class Fit:
    """A kernel (unknowns, outputs), its constant, and the channels (positions among the candidates) it reads."""

    kernel: Tensor
    constant: Tensor
    chosen: Tensor


def draw(
    tape: Tape, site: Site, x: Tensor, aim: Aim, taps: tuple[int, ...], most: int, conv: bool,
    generator: torch.Generator,
) -> Rows:  # fmt: skip
    """Return samples of one batch, at most so many (at least one of every picture)."""
    if not conv:
        flat = [t if t is None else t.flatten(0, -2) for t in (aim.wanted, aim.level)]
        rows = x.movedim(site.axis, -1).flatten(0, -2)
        pick = torch.randperm(len(rows), generator=generator)[:most]
        assert flat[0] is not None
        return Rows([rows[pick]], [flat[0][pick]], [None if flat[1] is None else flat[1][pick]])
    places = int(np.prod(aim.wanted.shape[2:]))
    each = max(1, min(places, -(-most // len(x))))
    step = max(1, min(len(x), 4_000_000 // max(1, each * x.shape[1] * int(np.prod(taps)))))
    found = Rows([], [], [])
    for first in range(0, len(x), step):
        chosen = torch.randperm(places, generator=generator)[:each]

        def at(t: Tensor | None, first: int = first, chosen: Tensor = chosen) -> Tensor | None:
            part = None if t is None else t[first : first + step].flatten(2)[:, :, chosen]
            return None if part is None else part.transpose(1, 2).flatten(0, 1)

        wanted = at(aim.wanted)
        assert wanted is not None
        found.x.append(patches(x[first : first + step], tape.plays[site.op], taps, chosen))
        found.y.append(wanted)
        found.level.append(at(aim.level))
    return found


def fit(
    parts: Iterable[Rows], prior: Tensor, taps: int, strength: float, weight: Tensor, sign: Tensor,
    width: int | None, fixed: Tensor, steps: int,
) -> Fit:  # fmt: skip
    """Fit a kernel; with `width`, only so many channels of `taps` unknowns each are read, chosen by elimination."""
    size = len(prior)
    moments = Moments(size, prior.shape[1])
    pieces = _pieces(parts)
    for x, y, _ in pieces:
        moments.add(x, y)
    covariance = moments.covariance()
    inside = ridge(covariance, strength)
    level = float(inside[0, 0] - covariance[0, 0])
    cross = moments.cross() + level * prior
    chosen = torch.arange(size // taps)
    if width is not None and width < len(chosen):
        chosen = block_elimination(inside, cross, taps, weight, width, fixed).left
    unknowns = (chosen[:, None] * taps + torch.arange(taps)).flatten()
    factor = torch.linalg.cholesky(inside[unknowns][:, unknowns])
    kernel = torch.cholesky_solve(cross[unknowns], factor)
    centre = moments.mean()[unknowns]
    constant = moments.mean_beside() - centre @ kernel
    if steps and all(p[2] is not None for p in pieces):
        ahead = []
        while pieces:  # one after the other, so that little is held twice
            x, y, at = pieces.pop()
            ahead.append(Ahead(x[:, unknowns] if len(unknowns) < size else x, *_opening(y, at, sign)))
        kernel, constant = _gated(
            ahead, kernel, constant, centre, prior[unknowns], level, factor, sign, steps
        )
    return Fit(kernel, constant, chosen)


def _pieces(parts: Iterable[Rows]) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Return the samples in pieces of some thousands: many small ones would cost more."""
    found, some = [], Rows([], [], [])

    def close() -> None:
        levels = [at for at in some.level if at is not None]
        found.append((torch.cat(some.x), torch.cat(some.y), torch.cat(levels) if levels else None))

    for part in parts:
        if sum(map(len, some.x)) >= _PIECE:
            close()
            some = Rows([], [], [])
        some.x.extend(part.x)
        some.y.extend(part.y)
        some.level.extend(part.level)
    close()
    return found


@dataclass(frozen=True, eq=False)
class Ahead:
    """Samples in front of a ReLU that opens upwards: x, what is wanted there, and the most that may be missing."""

    x: Tensor
    wanted: Tensor
    most: Tensor


def _opening(y: Tensor, level: Tensor | None, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is wanted and the most that may be missing, outputs turned so that the ReLU opens upwards.

    Where it is open in the original, all that is missing counts; else only what is above its level, so never more
    than nothing is missing.
    """
    assert level is not None
    wanted, level = y * sign, level * sign
    silent = wanted <= level
    return torch.where(silent, level, wanted), torch.where(silent, 0.0, torch.inf)


def _gated(
    pieces: Sequence[Ahead], kernel: Tensor, constant: Tensor, centre: Tensor, prior: Tensor,
    strength: float, factor: Tensor, sign: Tensor, steps: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Go on from least squares towards what counts behind a ReLU; accelerated steps in the metric of the patches."""
    count, metric = sum(len(p.x) for p in pieces), factor.float()
    kernel, prior, middle = kernel * sign, prior * sign, (constant + centre @ kernel) * sign
    before, before_middle, speed = kernel, middle, 1.0
    for _ in range(steps):
        faster = (1 + (1 + 4 * speed * speed) ** 0.5) / 2
        push, speed = (speed - 1) / faster, faster
        at, at_middle = kernel + push * (kernel - before), middle + push * (middle - before_middle)
        given = at.float()
        base = (at_middle - centre @ at).float()
        pull, shift = torch.zeros_like(kernel), torch.zeros_like(middle)
        for p in pieces:
            missing = torch.addmm(p.wanted, p.x, given, alpha=-1).sub_(base)
            missing = torch.minimum(missing, p.most, out=missing)
            pull += (p.x.T @ missing).double()
            shift += missing.sum(0).double()
        pull -= torch.outer(centre, shift)
        before, before_middle = kernel, middle
        step = pull / count - strength * (at - prior)
        kernel = at + torch.cholesky_solve(step.float(), metric).double()
        middle = at_middle + shift / count
    return kernel * sign, (middle - centre @ kernel) * sign
