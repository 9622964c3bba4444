r"""Refine a least-squares fit by the error behind the activation that follows a consumer.

The target is not the consumer's output y but $f(u)$ with $u = s (y - \ell)$: the batch norm behind it has the scale s
and is zero at the level $\ell$. Least squares weights every error of y alike. The steps below reuse its factorisation
and weight an error by its effect on f(u).

- ReLU and ReLU6: where the original is below zero, only an output above zero is an error. That loss is convex.
- Smooth activations (SiLU, hardswish, GELU, leaky ReLU, ...): an error is weighted by the squared slope of the secant,
  $((f(u) - f(\hat u)) / (u - \hat u))^2$, at most 1, so that the steps stay those of a majorant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.program import Instruction
from slimilar.graph.activations import plain_name
from slimilar.utils.precision import exact

Function = Callable[[Tensor], Tensor]

_RECTIFIERS = ("relu", "relu6", "hardtanh")
_SMOOTH = ("silu", "hardswish", "gelu", "mish", "elu", "celu", "leaky_relu")
_PIECE = 4096  # samples
_ALIKE = 1e-4  # inputs of an activation that are closer than this leave nothing to mend


@dataclass(frozen=True, eq=False)
class FollowingActivation:
    """What follows a consumer: the scale of its batch norm, by channel, and a function; None is a ReLU."""

    scale: Tensor
    function: Function | None = None


def function_of(instruction: Instruction) -> tuple[bool, Function | None]:
    """Tell whether an operator is an activation that these steps know, and return it unless it is a ReLU.

    A ReLU6 passes for a ReLU: hardly any value reaches six.
    """
    name = plain_name(instruction.func.name())
    if name in _RECTIFIERS:
        return name != "hardtanh" or instruction.args[1:2] in ((0,), (0.0,)), None
    if name not in _SMOOTH:
        return False, None
    return True, lambda x: replay.called_on(instruction, x)


@dataclass(frozen=True, eq=False)
class ReluSamples:
    """Samples in front of a ReLU that opens upwards: x, what is wanted there, and the most that may be missing."""

    x: Tensor
    wanted: Tensor
    most: Tensor

    def missing(self, given: Tensor) -> Tensor:
        """Return what is missing; where the original is closed, only what is too much."""
        gap = torch.sub(self.wanted, given, out=given)
        return torch.minimum(gap, self.most, out=gap)


@dataclass(frozen=True, eq=False)
class SmoothActivationSamples:
    """Samples in front of a smooth activation: x, what is wanted there, and the level at which its input is zero."""

    x: Tensor
    wanted: Tensor
    level: Tensor
    behind: FollowingActivation

    def missing(self, given: Tensor) -> Tensor:
        """Return what is missing, weighted by the squared slope of the secant."""
        function, scale = self.behind.function, self.behind.scale
        assert function is not None
        gap = self.wanted - given
        apart = gap * scale
        seen = function((self.wanted - self.level) * scale) - function((given - self.level) * scale)
        slope = torch.where(apart.abs() < _ALIKE, 0.0, seen / apart)
        return gap.mul_(slope.square_().clamp_(max=1.0))


def refine(
    samples: tuple[Tensor, Tensor, Tensor], behind: FollowingActivation, kernel: Tensor, constant: Tensor,
    centre: Tensor, prior: Tensor, strength: float, factor: Tensor, steps: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the kernel and the constant after some steps; samples are x, y and levels, and are written to."""
    x, y, level = samples
    if behind.function is None:
        sign = torch.where(behind.scale < 0, -1.0, 1.0).to(y)
        _open(y, level, sign)
    else:
        sign = torch.ones_like(behind.scale).to(y)
    behind = FollowingActivation(behind.scale.to(y), behind.function)
    pieces = [
        ReluSamples(a, b, c) if behind.function is None else SmoothActivationSamples(a, b, c, behind)
        for a, b, c in zip(*(t.split(_PIECE) for t in (x, y, level)), strict=True)
    ]
    sign = sign.to(kernel)
    middle = (constant + centre @ kernel) * sign
    kernel, middle = _accelerated(
        pieces, kernel * sign, middle, centre, prior * sign, strength, factor, steps
    )
    return kernel * sign, (middle - centre @ kernel) * sign


def _open(y: Tensor, level: Tensor, sign: Tensor) -> None:
    """Turn outputs so that the ReLU opens upwards: y becomes what is wanted, level the most that may be missing.

    Where it is open in the original, all that is missing counts; else only what is above its level, so never more
    than nothing is missing. In place, as there are many.
    """
    y *= sign
    level *= sign
    silent = y <= level
    torch.maximum(y, level, out=y)
    level.fill_(torch.inf).masked_fill_(silent, 0.0)


def _accelerated(
    pieces: Sequence[ReluSamples | SmoothActivationSamples], kernel: Tensor, middle: Tensor, centre: Tensor,
    prior: Tensor, strength: float, factor: Tensor, steps: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Take accelerated steps in the metric of the patches; `middle` is the output at their mean."""
    count, metric = sum(len(p.x) for p in pieces), factor.float()
    before, before_middle, speed = kernel, middle, 1.0
    for _ in range(steps):
        faster = (1 + (1 + 4 * speed * speed) ** 0.5) / 2
        push, speed = (speed - 1) / faster, faster
        at, at_middle = kernel + push * (kernel - before), middle + push * (middle - before_middle)
        given, base = (t.to(pieces[0].x) for t in (at, at_middle - centre @ at))
        pull, shift = torch.zeros_like(kernel), torch.zeros_like(middle)
        for p in pieces:
            missing = p.missing(torch.addmm(base, p.x, given))
            pull += exact(p.x.T @ missing)
            shift += exact(missing.sum(0))
        pull -= torch.outer(centre, shift)
        before, before_middle = kernel, middle
        step = pull / count - strength * (at - prior)
        kernel = at + torch.cholesky_solve(step.float(), metric).double()
        middle = at_middle + shift / count
    return kernel, middle
