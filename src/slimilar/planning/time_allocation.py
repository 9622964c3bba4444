"""Where to shrink when time is short: channels leave where a millisecond costs the least damage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slimilar.planning.rounding import Allocation, StepBlocks
from slimilar.planning.time_model import TimeModel

_AHEAD = 4  # blocks looked ahead: a time table has plateaus, where one block alone saves nothing
_NOTHING = 1e-9  # milliseconds


class _Descent:
    """Blocks that have left so far, and for every group the best next move: (damage per millisecond, blocks)."""

    def __init__(self, blocks: Sequence[StepBlocks], times: TimeModel) -> None:
        self.blocks, self.times = blocks, times
        self.taken = [0] * len(blocks)
        self.steps = [int(b.ends[0]) for b in blocks]
        settled = times.settled(self.steps)
        self.layers = [times.layer(i, settled) for i in range(len(times.layers))]
        self.moves = {g: move for g in range(len(blocks)) if (move := self._best(g)) is not None}

    @property
    def total(self) -> float:
        return sum(self.layers)

    def _best(self, g: int) -> tuple[float, int] | None:
        """Return the move of a group that costs the least damage per millisecond; None if all have left.

        A residual branch may go at once, with the layers in front of it: that saves what its channels do not.
        """
        block, now = self.blocks[g], self.taken[g]
        left = len(block.ends) - 1 - now
        found = []
        for count in {
            *range(1, min(_AHEAD, left) + 1),
            *([left] if left and g in self.times.in_front else []),
        }:
            damage = float(block.losses[now + count] - block.losses[now])
            found.append((damage / max(self._saved(g, int(block.ends[now + count])), _NOTHING), count))
        return min(found, default=None)

    def _saved(self, g: int, steps: int) -> float:
        moved = self.times.settled([*self.steps[:g], steps, *self.steps[g + 1 :]])
        return sum(self.layers[i] - self.times.layer(i, moved) for i in self.times.touched.get(g, ()))

    def move(self, g: int, count: int) -> None:
        """Let blocks of a group leave (or come back), and look again at the groups whose layers that changes."""
        self.taken[g] += count
        self.steps[g] = int(self.blocks[g].ends[self.taken[g]])
        changed, settled = set(self.times.touched.get(g, ())), self.times.settled(self.steps)
        for i in changed:
            self.layers[i] = self.times.layer(i, settled)
        for other, layers in self.times.touched.items():
            if other == g or changed & set(layers):
                self.moves.pop(other, None)
                if (move := self._best(other)) is not None:
                    self.moves[other] = move


def allocate_time(blocks: Sequence[StepBlocks], times: TimeModel, limit: float) -> Allocation | None:
    """Return the blocks that leave to bring the predicted time below a limit; None if all of them do not.

    One after another, the blocks leave that cost the least damage per millisecond at the widths reached so far. What
    is saved beyond the limit is given back, the dearest first. The threshold is above every channel that leaves.
    """
    descent = _Descent(blocks, times)
    while descent.total > limit:
        if not descent.moves:
            return None
        g = min(descent.moves, key=lambda g: descent.moves[g])
        descent.move(g, descent.moves[g][1])
    _give_back(descent, limit)
    loss = sum(float(b.losses[n]) for b, n in zip(blocks, descent.taken, strict=True))
    tops = [float(b.tops[n - 1]) for b, n in zip(blocks, descent.taken, strict=True) if n]
    return Allocation(float(np.nextafter(max(tops, default=0.0), 2)), tuple(descent.steps), loss)


def _give_back(descent: _Descent, limit: float) -> None:
    def dearest(g: int) -> float:
        block, n = descent.blocks[g], descent.taken[g]
        return float(block.losses[n - 1] - block.losses[n])

    for g in sorted((g for g, n in enumerate(descent.taken) if n), key=dearest):
        descent.move(g, -1)
        if descent.total > limit:
            descent.move(g, 1)
