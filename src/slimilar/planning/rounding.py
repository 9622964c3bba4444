"""Widths that runtimes like, as part of the allocation: channels leave in blocks that end at multiples.

Convolutions compute blocks of channels: 16 of them in an AVX-512 register, 8 with AVX2 and on the tensor cores of a GPU
in half precision, 16 there in int8. A width in between is padded, or sends the layer to a slower kernel. 16 is a
multiple of all of these, so it is what "auto" stands for where nothing was measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from slimilar.errors import InvalidInput, Option

if TYPE_CHECKING:
    from slimilar.graph.groups import ChannelGroup

RoundTo = int | Literal["auto", "measure"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CostOf = Callable[[Sequence[int]], int]  # of the network, after so many steps of each group

AUTO = 16  # channels
WORTH = 1.5  # what more parts must divide the loss by
_PARTS = (1, 2, 4, 8)  # of thin groups: what to try in turn
_LEAST = 4  # channels: what thin groups are rounded to at least


def check_rounding(value: object) -> RoundTo:
    """Return a multiple, "auto" or "measure", or raise.

    >>> check_rounding("auto"), check_rounding(8)
    ('auto', 8)
    """
    if value in ("auto", "measure") or (
        isinstance(value, int) and not isinstance(value, bool) and value >= 1
    ):
        return value
    raise InvalidInput(
        Option("round_to"), f' must be a whole number of at least 1, "auto" or "measure", got {value!r}'
    )


@dataclass(frozen=True)
class Rounding:
    """What widths are multiples of; `adapts` to groups: 16 channels however many a unit has.

    A thin group has few multiples to choose from. So it takes a half, a quarter, ... of the multiple, down to 4
    channels, until so many `parts` fit into it: with 4 parts, 32 channels are rounded to 8. That costs time: below 16,
    half the channels take five sixths of it in ONNX Runtime. So a budget tries few parts first. A group of less than
    one multiple has nothing to round to, and takes any width.
    """

    multiple: int
    adapts: bool = False
    parts: int = 1

    def of(self, group: ChannelGroup) -> int:
        """Return what the width of a group is a multiple of, in units."""
        if not self.adapts:
            return self.multiple
        unit = _channels_of_a_unit(group)
        multiple, least = (m // math.gcd(m, unit) for m in (self.multiple, _LEAST))
        if group.width < multiple:
            return 1
        while multiple >= 2 * least and group.width < self.parts * multiple:
            multiple //= 2
        return multiple


def roundings(round_to: RoundTo, multiple: int = AUTO) -> tuple[Rounding, ...]:
    """Return what to try for a budget, in turn: "auto" takes smaller multiples where the first cannot reach it.

    >>> [(rounding.multiple, rounding.parts) for rounding in roundings("auto")]
    [(16, 1), (16, 2), (16, 4), (16, 8), (8, 8), (4, 8), (2, 8), (1, 8)]
    """
    if isinstance(round_to, int):
        return (Rounding(round_to),)
    finer = (Rounding(multiple >> i, adapts=True, parts=_PARTS[-1]) for i in range(1, multiple.bit_length()))
    return (*(Rounding(multiple, adapts=True, parts=parts) for parts in _PARTS), *finer)


def dictated_rounding(round_to: RoundTo, multiple: int = AUTO) -> Rounding:
    """Return the rounding where a threshold or a ratio dictates widths: thin groups are halved, not left whole.

    >>> dictated_rounding("auto"), dictated_rounding(8).multiple
    (Rounding(multiple=16, adapts=True, parts=2), 8)
    """
    return next(r for r in roundings(round_to, multiple) if r.parts > 1 or not r.adapts)


def _channels_of_a_unit(group: ChannelGroup) -> int:
    norms = group.batch_norms
    return norms[0].positions.shape[1] if norms else max(1, len(group.channels[0]))


def rounded_up(width: int, steps: int, multiple: int) -> int:
    """Return how many of some steps are taken if the width that they leave is rounded up.

    >>> [rounded_up(20, steps, 8) for steps in (3, 4, 13)]
    [0, 4, 12]
    """
    left = -(-(width - steps) // multiple) * multiple
    return width - min(width, left)


@dataclass(frozen=True, eq=False)
class StepBlocks:
    """The steps of a group, cut into blocks that end where its width is a multiple. A block leaves as a whole.

    >>> found = StepBlocks.of(np.array([0.1, 0.2, 0.3, 0.5, 0.9]), width=6, multiple=2)
    >>> found.ends.tolist(), found.means.round(3).tolist(), found.tops.tolist()
    ([0, 2, 4], [0.15, 0.4], [0.2, 0.5])
    """

    ends: Ints  # steps that are taken after 0, 1, ... blocks
    means: Floats  # of the heights of each block's steps
    tops: Floats  # the largest of them
    losses: Floats  # what all steps taken cost, after 0, 1, ... blocks: their damage, or their heights

    @classmethod
    def of(cls, heights: Floats, width: int, multiple: int, damage: Floats | None = None) -> StepBlocks:
        """Return the blocks of the steps of a group that may be taken."""
        steps = np.arange(len(heights) + 1)
        ends = steps[(steps == 0) | ((width - steps) % multiple == 0)]
        sums, losses = (
            np.append(0.0, np.cumsum(x))[ends] for x in (heights, heights if damage is None else damage)
        )
        means = np.diff(sums) / np.diff(ends)
        # heights never fall, so neither do their means, but for rounding errors
        return cls(ends, np.maximum.accumulate(means), heights[ends[1:] - 1], losses)

    @classmethod
    def settled(cls, steps: int) -> StepBlocks:
        """Return a group of which a number of steps is taken in any case."""
        return cls(np.array([steps]), np.empty(0), np.empty(0), np.zeros(1))


@dataclass(frozen=True)
class Allocation:
    """How many steps of each group are taken; `loss` is what they cost together."""

    threshold: float
    steps: tuple[int, ...]
    loss: float


def allocate(
    blocks: Sequence[StepBlocks], cost: CostOf, limit: float, *, give_back: bool = True
) -> Allocation | None:
    """Return the blocks that leave to meet a budget; None if all of them together do not reach it.

    Blocks leave in the order of their mean heights, which rounds widths to the nearest, or of their largest, which
    rounds them up, whichever loses less. What is saved beyond the budget is given back, groups of high
    blocks first: no threshold gives these widths, so `give_back` is false where one should.
    """
    found = []
    for ranks in ([b.tops for b in blocks], [b.means for b in blocks])[: 1 + give_back]:
        if (reached := _first_within(blocks, ranks, cost, limit)) is not None:
            threshold, taken = reached
            kept = _given_back(blocks, ranks, taken, cost, limit) if give_back else taken
            loss = sum(float(b.losses[n]) for b, n in zip(blocks, kept, strict=True))
            found.append(Allocation(threshold, tuple(_steps(blocks, kept)), loss))
    return min(found, key=lambda allocation: allocation.loss, default=None)


def first_reached(
    tried: Sequence[Rounding],
    found: Callable[[Rounding], Allocation | None],
    multiples: Callable[[Rounding], list[int]],
    worth: float = WORTH,
) -> tuple[Allocation, Rounding] | None:
    """Return the first rounding that reaches a budget; or one of more parts, while each loses `worth` times less.

    Networks that are thin all over (CIFAR ResNets) would otherwise shrink only where they are wide.
    """
    best: tuple[Allocation, Rounding] | None = None
    for rounding in tried:
        if best is not None and rounding.multiple < best[1].multiple:
            break
        if best is not None and multiples(rounding) == multiples(best[1]):
            continue
        allocation = found(rounding)
        if best is not None and (allocation is None or allocation.loss >= best[0].loss / worth):
            break
        if allocation is not None:
            best = allocation, rounding
    return best


def _steps(blocks: Sequence[StepBlocks], taken: Sequence[int]) -> list[int]:
    return [int(b.ends[n]) for b, n in zip(blocks, taken, strict=True)]


def _first_within(
    blocks: Sequence[StepBlocks], ranks: Sequence[Floats], cost: CostOf, limit: float
) -> tuple[float, list[int]] | None:
    """Return the smallest threshold on the ranks of blocks that is within the limit, and the blocks below it."""

    def below(i: int) -> list[int]:
        return [int(np.searchsorted(rank, thresholds[i])) for rank in ranks]

    thresholds = np.append(0.0, np.nextafter(np.unique(np.concatenate([np.empty(0), *ranks])), np.inf))
    at = smallest(lambda i: cost(_steps(blocks, below(i))), limit, len(thresholds))
    return None if at is None else (float(thresholds[at]), below(at))


def _given_back(
    blocks: Sequence[StepBlocks], ranks: Sequence[Floats], taken: Sequence[int], cost: CostOf, limit: float
) -> list[int]:
    """Return the blocks that leave without those for which there is room, groups of high blocks first."""
    kept = list(taken)
    last = {g: float(rank[n - 1]) for g, (rank, n) in enumerate(zip(ranks, kept, strict=True)) if n}
    for g in sorted(last, key=lambda g: -last[g]):
        while kept[g] and cost(_steps(blocks, [*kept[:g], kept[g] - 1, *kept[g + 1 :]])) <= limit:
            kept[g] -= 1
    return kept


def smallest(cost: Callable[[int], int], limit: float, count: int) -> int | None:
    """Return the first of so many states, whose cost never rises, within a limit; None if not even the last is.

    >>> smallest(lambda i: 10 - i, 7, 10), smallest(lambda i: 10 - i, 0, 10)
    (3, None)
    """
    if cost(count - 1) > limit:
        return None
    return bisect_left(range(count - 1), True, key=lambda i: cost(i) <= limit)
