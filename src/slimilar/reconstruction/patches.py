r"""Least squares of a consumer's whole kernel over the patches that it sees.

With rows x (patches of the channels that stay) and y (what the consumer should write), the kernel is
$\arg\min_W E\lVert x W + b - y \rVert^2 + \lambda \lVert W - W_0 \rVert^2$ in closed form. Where an activation
follows, a few steps with the same factorisation go on to what counts behind it (`activation_aware`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from slimilar.calibration.consumers import at_places, patches
from slimilar.calibration.program import Instruction
from slimilar.reconstruction.activation_aware import FollowingActivation, refine
from slimilar.reconstruction.ridge import (
    Statistics,
    held_out_error,
    leave_one_out_strength,
    pooled,
    weakest_strength,
)
from slimilar.reconstruction.solvers import (
    SampleMoments,
    block_elimination,
    positive_definite,
    rounding,
    unknowns_of,
)
from slimilar.reconstruction.solvers import level as level_of
from slimilar.reconstruction.targets import ReconstructionTarget

HELD = 80_000_000  # numbers of what one consumer sees that are held at a time
PAIRED = 2 * HELD  # and of that together with what it should write, and where the ReLU behind it opens

_PIECE = 4096  # samples
_AT_ONCE = 4_000_000  # numbers of the patches that are gathered at once
_EVERY = 4  # one image of so many is held out while the ridge is chosen
_ALONE = 2048  # samples, one an image, for which leaving each out is affordable
_CAREFUL = 1.0  # the ridge where a single image leaves nothing to measure on


class Samples:
    """What a consumer sees (x), should write (y), and the level of the activation behind it (None without one).

    Room for all is taken once: samples kept one by one, among larger things that come and go, would leave holes in
    memory that nothing fits into.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._held: list[Tensor | None] = []
        self._images = torch.zeros(most, dtype=torch.int64)

    def add(self, x: Tensor, y: Tensor, level: Tensor | None, images: Tensor | None = None) -> None:
        """Take in some rows, and the numbers of the images they are from; each is of its own without them."""
        parts = (x, y, level)
        own = torch.arange(self._count, self._count + len(x))
        self._images[self._count : self._count + len(x)] = own if images is None else images
        if not self._held:
            self._held = [None if p is None else p.new_empty(self._most, p.shape[1]) for p in parts]
        end = self._count + len(x)
        for i, part in enumerate(parts):
            room = self._held[i]
            if room is None or part is None:  # a level that not all have is of no use
                self._held[i] = None
            else:
                room[self._count : end] = part
        self._count = end

    @property
    def images(self) -> Tensor:
        """The number of the image that every row is from."""
        return self._images[: self._count]

    def all(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return all x, y and levels."""
        x, y, level = (None if room is None else room[: self._count] for room in self._held)
        assert x is not None
        assert y is not None
        return x, y, level


@dataclass(frozen=True, eq=False)
class Fit:
    """A kernel (unknowns, outputs), its constant, and the channels (positions among the candidates) it reads."""

    kernel: Tensor
    constant: Tensor
    chosen: Tensor


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws samples of what a consumer reads of some channels, at most so many of a batch."""

    instruction: Instruction
    axis: int  # of the channels
    channels: Tensor
    taps: tuple[int, ...]
    conv: bool  # otherwise a linear layer, whose rows are samples
    most: int
    generator: torch.Generator

    def draw(self, samples: Samples, x: Tensor, target: ReconstructionTarget, numbers: Tensor) -> None:
        """Add samples of one batch, at least one of every image; `numbers` are its images' (`image_numbers`)."""
        if not self.conv:
            rows = x.movedim(self.axis, -1).flatten(0, -2)
            pick = torch.randperm(len(rows), generator=self.generator)[: self.most]
            images = numbers[pick // (len(rows) // len(x))]
            seen = rows[pick].index_select(1, self.channels.to(x.device))
            samples.add(seen, *target.at(lambda t: t.flatten(0, -2)[pick]), images)
            return
        places = int(np.prod(target.plain.shape[2:]))
        each = max(1, min(places, -(-self.most // len(x))))
        step = max(1, min(len(x), _AT_ONCE // max(1, each * len(self.channels) * int(np.prod(self.taps)))))
        for first in range(0, len(x), step):
            some = slice(first, first + step)
            chosen = torch.randperm(places, generator=self.generator)[:each]
            seen = patches(x[some], self.instruction, self.taps, chosen, self.channels)
            images = numbers[some].repeat_interleave(len(chosen))
            samples.add(seen, *target.at(partial(_some_of, some=some, places=chosen)), images)


def image_numbers(batch: int, distinct: int, size: int) -> Tensor:
    """Return the numbers of a batch's images; batches from `distinct` on are horizontal flips of the first ones.

    Of every four numbers the last is held out. With four batches or more, that is every fourth batch as a whole.

    >>> image_numbers(5, 8, 3).tolist(), image_numbers(13, 8, 3).tolist(), image_numbers(1, 2, 3).tolist()
    ([13, 17, 21], [13, 17, 21], [3, 4, 5])
    """
    batch %= distinct
    if distinct < _EVERY:
        return batch * size + torch.arange(size)
    return (batch // _EVERY * size + torch.arange(size)) * _EVERY + batch % _EVERY


def held_out_rows(images: Tensor) -> Tensor:
    """Tell for every row, by the number of its image, whether it is held out."""
    return images % _EVERY == _EVERY - 1


def _some_of(images: Tensor, some: slice, places: Tensor) -> Tensor:
    return at_places(images[some], places)


def fit(
    samples: Samples,
    prior: Tensor,
    choice: ChannelChoice,
    behind: FollowingActivation | None,
    steps: int,
    strength: float | None = None,
) -> Fit:
    """Fit a kernel, in which the channels of a choice are read; fewer than there are are chosen by elimination.

    `behind` is the activation that follows it; `steps` go towards what counts there. The ridge is `strength` times the
    mean variance; without it, what held-out images say is best on the likely channels.
    """
    size, taps, likely = len(prior), choice.taps, choice.likely
    x, y, level = samples.all()
    exchange = choice.width < size // taps
    if strength is None:
        seen, strength, exchange = _select_ridge(samples, prior, choice, exchange)
    else:
        seen = _statistics(x, y, torch.ones(len(x), dtype=torch.bool))
    if choice.mixed is not None and not exchange:
        prior = prior.clone()
        prior[unknowns_of(likely, taps)] = choice.mixed
    inside = seen.covariance
    strength = positive_definite(inside, max(level_of(inside, strength), rounding(inside, seen.cross)))
    cross = seen.cross + strength * prior
    chosen = choice.eliminated(inside, cross) if exchange else likely
    unknowns = unknowns_of(chosen, taps)
    if len(unknowns) < size:
        inside = inside[unknowns][:, unknowns]
    factor = torch.linalg.cholesky(inside)
    kernel = torch.cholesky_solve(cross[unknowns], factor)
    centre = seen.mean[unknowns]
    constant = seen.target - centre @ kernel
    if steps and level is not None and behind is not None:
        seen_by_it = x[:, unknowns] if len(unknowns) < size else x
        kernel, constant = refine(
            (seen_by_it, y, level), behind, kernel, constant, centre, prior[unknowns], strength, factor, steps
        )
    return Fit(kernel, constant, chosen)


@dataclass(frozen=True, eq=False)
class ChannelChoice:
    """Which channels, of `taps` unknowns each, a kernel may read: `width` of them, the `fixed` ones in any case.

    The `likely` ones are those that were chosen before. Outputs count by `weight`.
    """

    taps: int
    weight: Tensor
    width: int
    fixed: Tensor
    likely: Tensor
    mixed: Tensor | None = None  # the kernel in which the likely ones stand in for the others: a better prior

    def eliminated(self, inside: Tensor, cross: Tensor) -> Tensor:
        """Return the channels that backward elimination leaves."""
        return block_elimination(inside, cross, self.taps, self.weight, self.width, self.fixed).left


def _select_ridge(
    samples: Samples, prior: Tensor, choice: ChannelChoice, exchange: bool
) -> tuple[Statistics, float, bool]:
    """Return the statistics of all samples, a ridge that errs little on held-out images, and whether to exchange.

    Channels are exchanged only where those that elimination finds on the fitted images err less on the others.
    """
    x, y, _ = samples.all()
    fitted = ~held_out_rows(samples.images)
    everything, at = torch.ones_like(fitted), unknowns_of(choice.likely, choice.taps)
    start = prior[at] if choice.mixed is None else choice.mixed
    if len(x) <= _ALONE and len(samples.images.unique()) == len(x) > 1:
        strength = leave_one_out_strength(x[:, at], y, start, choice.weight)
        return _statistics(x, y, everything), strength, False
    if not bool(fitted.any()) or bool(fitted.all()):  # too few images to tell
        return _statistics(x, y, everything), _CAREFUL, False
    fit, held_out = _statistics(x, y, fitted), _statistics(x, y, ~fitted)
    strength, error = weakest_strength(fit.only(at), held_out.only(at), start, choice.weight)
    if exchange:
        exchange = _exchanged_error(fit, held_out, prior, choice, strength) < error
    together = pooled(fit, held_out)
    return together, strength * fit.count / together.count, exchange


def _exchanged_error(
    fit: Statistics, held_out: Statistics, prior: Tensor, choice: ChannelChoice, strength: float
) -> float:
    """Return the held-out error of the kernel on those channels that elimination finds on the fitted images."""
    amount = level_of(fit.covariance, strength)
    inside = fit.covariance.clone()
    inside.diagonal().add_(amount)
    at = unknowns_of(choice.eliminated(inside, fit.cross + amount * prior), choice.taps)
    return held_out_error(fit.only(at), held_out.only(at), prior[at], choice.weight, strength)


def _statistics(x: Tensor, y: Tensor, chosen: Tensor) -> Statistics:
    """Return the statistics of some rows."""
    moments = SampleMoments(x.shape[1], y.shape[1])
    for xs, ys, some in zip(x.split(_PIECE), y.split(_PIECE), chosen.split(_PIECE), strict=True):
        if bool(some.all()):
            moments.add(xs, ys)
        elif bool(some.any()):
            moments.add(xs[some], ys[some])
    return Statistics.of(moments)
