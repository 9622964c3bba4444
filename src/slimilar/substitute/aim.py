r"""What a reader should write: what the original writes there, and from where on it matters.

On a residual branch the aim is the *stream*: what makes the sum the original's. Behind a ReLU nothing below zero
matters: where the original is silent, it is enough to be silent too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slimilar import replay
from slimilar.replay import Held, Tape, Values
from slimilar.substitute.sites import Site

_RELU = ("aten::relu", "aten::relu_")


@dataclass(eq=False)
class Pair:
    """The original and the pruned network on one batch: their values so far."""

    original: Values
    pruned: Values


@dataclass(frozen=True, eq=False)
class Aim:
    """The wanted output of a reader, to be had at a few places without computing it at all of them."""

    plain: Tensor  # what the original writes
    beside: tuple[Tensor, Tensor] | None = (
        None  # what is added to it behind: in the original, and in the pruned one
    )
    heard: Tensor | None = (
        None  # by channel, how loud what it writes is in that sum; without it, it mends nothing
    )
    level: Tensor | None = None  # by channel, the output at which the batch norm behind it gives zero
    scale: Tensor | None = None  # by channel, the factor of that batch norm

    def at(self, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return what is wanted and, with a ReLU behind it, the level at which that opens: (samples, channels)."""
        wanted, mine = pick(self.plain), None
        if self.beside is not None:
            mine = pick(self.beside[1])
            if self.heard is not None:
                wanted = wanted.addcdiv(pick(self.beside[0]).sub_(mine), self.heard)
        if self.level is None:
            return wanted, None
        if mine is None or self.scale is None:
            return wanted, self.level.expand_as(wanted)
        return wanted, self.level - mine / self.scale


def scale_of(tape: Tape, tensors: Mapping[str, Tensor], norm: int) -> Tensor:
    """Return the factor by which a batch norm multiplies each channel."""
    play = tape.plays[norm]
    gamma, variance = (tensors[a.name] if isinstance(a, Held) else None for a in (play.args[1], play.args[4]))
    if variance is None:
        return torch.ones(1) if gamma is None else torch.ones_like(gamma)
    spread: Tensor = (variance + play.args[7]).sqrt()
    return spread.reciprocal() if gamma is None else gamma / spread


def aim_of(
    tape: Tape,
    site: Site,
    pair: Pair,
    original: replay.Tensors,
    pruned: replay.Tensors,
    correct: bool,
    gate: bool,
) -> Aim:
    """Return what a reader should write, given both networks up to it."""
    ahead = dict(pair.original)
    replay.play_one(tape, site.op, ahead, original)
    plain = ahead[tape.plays[site.op].outputs[0]]
    scale = torch.ones(1) if site.norm is None else scale_of(tape, original, site.norm)
    beside, heard = None, None
    if site.add is not None:
        try:
            mine = replay.peek(tape, site.add[1], pair.pruned, pruned)
            beside = replay.peek(tape, site.add[1], pair.original, original), mine
        except KeyError:  # the other branch needs this very reader
            return Aim(plain)
        if mine.shape != plain.shape:
            return Aim(plain)
        if correct:  # a silent channel cannot mend it
            heard = torch.where(scale.abs() > 1e-2 * scale.abs().max(), scale, torch.inf)
    if not gate or not opens(tape, site):
        return Aim(plain, beside, heard)
    return Aim(plain, beside, heard, _level(tape, site, original, scale), _safe(scale))


def opens(tape: Tape, site: Site) -> bool:
    """Tell whether a ReLU alone takes what a reader, its batch norm and its addition give."""
    last = site.add[0] if site.add is not None else site.norm if site.norm is not None else site.op
    users = tape.consumers(tape.plays[last].outputs[0])
    return len(users) == 1 and tape.plays[users[0]].func.name() in _RELU


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale.abs() < 1e-12, torch.full_like(scale, 1e-12), scale)


def _level(tape: Tape, site: Site, tensors: replay.Tensors, scale: Tensor) -> Tensor:
    """Return the output of the reader at which its batch norm gives zero: mean - beta / scale."""
    if site.norm is None:
        return torch.zeros(1)
    play = tape.plays[site.norm]
    beta, mean = (
        tensors[a.name] if isinstance(a, Held) else torch.zeros(1) for a in (play.args[2], play.args[3])
    )
    return mean - beta / _safe(scale)
