r"""What a reader should write: what the original writes there, and from where on it matters.

On a residual branch the aim is the *stream*: what makes the sum the original's. Behind a ReLU nothing below zero
matters: where the original is silent, it is enough to be silent too.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The wanted output of a reader; with a ReLU behind it, the level at which that opens, of the same shape."""

    plain: Tensor  # what the original writes
    wanted: Tensor
    level: Tensor | None = None


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
    plain = out = ahead[tape.plays[site.op].outputs[0]]
    ones = [1, -1] + [1] * (out.ndim - 2)
    scale = torch.ones(1) if site.norm is None else scale_of(tape, original, site.norm)
    beside: Tensor | None = None
    if site.add is not None:
        try:
            beside = replay.peek(tape, site.add[1], pair.pruned, pruned)
            lost = replay.peek(tape, site.add[1], pair.original, original) - beside
        except KeyError:  # the other branch needs this very reader
            return Aim(plain, out)
        if beside.shape != out.shape:
            return Aim(plain, out)
        if correct:  # a silent channel cannot mend it
            heard = torch.where(scale.abs() > 1e-2 * scale.abs().max(), scale, torch.inf)
            out = out + lost / heard.reshape(ones)
    if not gate or not opens(tape, site):
        return Aim(plain, out)
    level = _level(tape, site, original, scale).reshape(ones)
    return Aim(
        plain, out, (level if beside is None else level - beside / _safe(scale).reshape(ones)).expand_as(out)
    )


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
