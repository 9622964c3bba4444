"""The one question for every criterion: in which order would you remove a group's channels?

A criterion answers for every group with a `RemovalOrder` (which unit leaves at each step, at what height, who stands
in for it) or with a sentence that says why it cannot. A threshold cuts the heights, a budget is a search on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from slimilar.cost import CostModel
from slimilar.groups import ChannelGroup, Grouping
from slimilar.replay import Tape
from slimilar.similarity import NOBODY, RemovalOrder
from slimilar.trace import Trace


@dataclass(frozen=True, eq=False)
class Sight:
    """Pictures and the means to send them through the network, for criteria that look at activations."""

    trace: Trace
    grouping: Grouping
    costs: CostModel
    tape: Tape
    batches: Sequence[Tensor]
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """What a criterion may look at: the tensors of the model, by name, and pictures if there are any."""

    tensors: Mapping[str, Tensor]
    sight: Sight | None = None


class Criterion(Protocol):
    """Anything with a name and an `orders` method can be passed as `criterion=`."""

    @property
    def name(self) -> str:
        """Return the name under which the criterion is shown."""
        ...

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> Sequence[RemovalOrder | str]:
        """Return for every group a removal order, or why there is none."""
        ...


def free_units(group: ChannelGroup) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the units of a group that may leave."""
    return np.array([u for u in range(group.width) if u not in group.fixed], np.int64)


def renumber(order: RemovalOrder, units: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RemovalOrder:
    """Return an order over positions in `units` as one over the units themselves."""
    stand_in = np.where(order.stand_in >= 0, units[order.stand_in], NOBODY)
    return RemovalOrder(units[order.removed], order.heights, stand_in)
