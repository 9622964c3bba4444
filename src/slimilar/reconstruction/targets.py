r"""What a consumer should write: what the original writes there, and from where on it matters.

On a residual branch the target is the *stream*: what makes the sum the original's. Where an activation follows, the
level at which its input is zero belongs to the target: errors count by what they change behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.consumers import ConsumerLayer
from slimilar.calibration.program import Held, Program
from slimilar.calibration.replay import Values
from slimilar.reconstruction.activation_aware import Function, function_of


@dataclass(eq=False)
class Pair:
    """The original and the pruned network on one batch: their values so far."""

    original: Values
    pruned: Values


@dataclass(frozen=True, eq=False)
class ReconstructionTarget:
    """The wanted output of a consumer, to be had at a few places without computing it at all of them."""

    plain: Tensor  # what the original writes
    # What is added to it behind: in the original, and in the pruned one.
    beside: tuple[Tensor, Tensor] | None = None
    gain: Tensor | None = (
        None  # by channel, the factor of what it writes in that sum; without it, it corrects nothing
    )
    level: Tensor | None = None  # by channel, the output at which the batch norm behind it gives zero
    scale: Tensor | None = None  # by channel, the factor of that batch norm

    def at(self, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return what is wanted and, with an activation behind it, the level of its zero: (samples, channels)."""
        wanted, mine = pick(self.plain), None
        if self.beside is not None:
            mine = pick(self.beside[1])
            if self.gain is not None:
                wanted = wanted.addcdiv(pick(self.beside[0]).sub_(mine), self.gain)
        if self.level is None:
            return wanted, None
        if mine is None or self.scale is None:
            return wanted, self.level.expand_as(wanted)
        return wanted, self.level - mine / self.scale


def scale_of(program: Program, tensors: Mapping[str, Tensor], norm: int) -> Tensor:
    """Return the factor by which a batch norm multiplies each channel."""
    instruction = program.instructions[norm]
    gamma, variance = (
        tensors[a.name] if isinstance(a, Held) else None for a in (instruction.args[1], instruction.args[4])
    )
    if variance is None:
        return torch.ones(1, device=program.device) if gamma is None else torch.ones_like(gamma)
    spread: Tensor = (variance + instruction.args[7]).sqrt()
    return spread.reciprocal() if gamma is None else gamma / spread


def target_of(
    program: Program,
    consumer: ConsumerLayer,
    pair: Pair,
    original: replay.Tensors,
    pruned: replay.Tensors,
    correct: bool,
    gate: bool,
) -> ReconstructionTarget:
    """Return what a consumer should write, given both networks up to it."""
    ahead = dict(pair.original)
    replay.execute(program, consumer.op, ahead, original)
    plain = ahead[program.instructions[consumer.op].outputs[0]]
    scale = plain.new_ones(1) if consumer.norm is None else scale_of(program, original, consumer.norm)
    beside, gain = None, None
    if consumer.add is not None:
        try:
            mine = replay.peek(program, consumer.add[1], pair.pruned, pruned)
            beside = replay.peek(program, consumer.add[1], pair.original, original), mine
        except KeyError:  # the other branch needs this very consumer
            return ReconstructionTarget(plain)
        if mine.shape != plain.shape:
            return ReconstructionTarget(plain)
        if correct:  # a channel whose factor is almost zero cannot correct it
            gain = torch.where(scale.abs() > 1e-2 * scale.abs().max(), scale, torch.inf)
    if not gate or following_activation(program, consumer) is None:
        return ReconstructionTarget(plain, beside, gain)
    return ReconstructionTarget(plain, beside, gain, _level(program, consumer, original, scale), _safe(scale))


def following_activation(program: Program, consumer: ConsumerLayer) -> tuple[int, Function | None] | None:
    """Return the activation that alone takes what a consumer, its batch norm and its addition give, if it is known.

    That is its operator and its function, which is None for a ReLU.
    """
    last = consumer.op
    if consumer.add is not None:
        last = consumer.add[0]
    elif consumer.norm is not None:
        last = consumer.norm
    users = program.consumers(program.instructions[last].outputs[0])
    if len(users) != 1:
        return None
    known, function = function_of(program.instructions[users[0]])
    return (users[0], function) if known else None


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale.abs() < 1e-12, torch.full_like(scale, 1e-12), scale)


def _level(program: Program, consumer: ConsumerLayer, tensors: replay.Tensors, scale: Tensor) -> Tensor:
    """Return the output of the consumer at which its batch norm gives zero: mean - beta / scale."""
    if consumer.norm is None:
        return torch.zeros_like(scale)
    instruction = program.instructions[consumer.norm]
    beta, mean = (
        tensors[a.name] if isinstance(a, Held) else torch.zeros_like(scale)
        for a in (instruction.args[2], instruction.args[3])
    )
    return mean - beta / _safe(scale)
