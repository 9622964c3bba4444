"""What every criterion answers: in which order the channels of a group leave.

A criterion answers for every group with a `RemovalOrder` (which unit leaves at each step, at what height, and which
one represents it from then on) or with the reason why it cannot. A threshold cuts the heights, a budget is a search on
them. What a criterion needs it declares in its `Facts`; see `criteria.needs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.calibration.program import Program
from slimilar.graph.groups import ChannelGroup, Grouping
from slimilar.graph.records import Trace
from slimilar.graph.structure import Structure
from slimilar.planning.assemble import Answer, LazyAnswer
from slimilar.planning.cost import CostModel
from slimilar.similarity.removal_order import NO_REPRESENTATIVE, RemovalOrder

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Need = Literal["nothing", "images", "labels", "training"]

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Facts:
    """What a criterion is and needs: declared by it, shown to users, and checked before the work starts.

    `automatic` and `pretrained` are the two columns of the paper's table 1: does the method find the target structure
    by itself, and can it be applied to a network that was trained without it?
    """

    what: str  # one sentence
    needs: Need = "nothing"
    tag: str = ""  # in the paper's tables
    automatic: bool = False
    pretrained: bool = True
    reconstruction: str = (
        "none"  # what its own paper does about the consumers: "none", "merge" or "least-squares"
    )
    per_budget: bool = False  # its training phase has to know how far the pruning to come will go
    exchangeable: bool = False  # reconstruction may exchange channels of its choice

    @property
    def substitute(self) -> str:
        """The earlier name of `reconstruction`."""
        return self.reconstruction


@dataclass(frozen=True, eq=False)
class CalibrationView:
    """Images and the means to send them through the network, for criteria that look at activations."""

    trace: Trace
    grouping: Grouping
    costs: CostModel
    program: Program
    batches: Sequence[Tensor]
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = None
    labels: Sequence[Tensor] | None = None  # of the images, batch by batch, where they are known


@dataclass(frozen=True, eq=False)
class Weights:
    """What a criterion may look at: the tensors of the model, by name, and images if there are any."""

    tensors: Mapping[str, Tensor]
    calibration: CalibrationView | None = None
    phases: frozenset[str] = frozenset()  # the criteria whose training phase the model has gone through
    structure: Structure | None = None  # how channels go through the network, where that is known

    @property
    def sight(self) -> CalibrationView | None:
        """The earlier name of `calibration`."""
        return self.calibration


class Criterion(Protocol):
    """Anything with a name and an `orders` method can be passed as `criterion=`.

    It may also have `facts` (a `Facts`), `note(groups, weights)` (a sentence for the report), and, if it has a
    training phase, `hooks(groups, counts)` (see `criteria.training`) and `trained`, which is
    true if the user declares that the phase is over.
    """

    @property
    def name(self) -> str:
        """Return the name under which the criterion is shown."""
        ...

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> Sequence[Answer]:
        """Return for every group a removal order, or why there is none."""
        ...


# --- training phases --------------------------------------------------------------------------------------------


_MARK = "slimilar_phases"  # the attribute in which a model remembers the training phases it had


def mark_trained(model: nn.Module, name: str) -> None:
    """Let a model remember that it went through the training phase of a criterion."""
    setattr(model, _MARK, phases_of(model) | {name})


def phases_of(model: nn.Module) -> frozenset[str]:
    """Return the criteria whose training phase a model remembers."""
    found: frozenset[str] = getattr(model, _MARK, frozenset())
    return found


# --- helpers for criteria ---------------------------------------------------------------------------------------


@runtime_checkable
class LazyCriterion(Protocol):
    """A criterion whose orders may be computed later, and only as far as a cut needs them."""

    def lazy_orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> Sequence[LazyAnswer]:
        """Return what `orders` does, with orders that are not computed yet."""
        ...


class PerGroup:
    """A criterion that answers for every group by itself: it defines `order`."""

    def order(self, turn: int, group: ChannelGroup, weights: Weights) -> RemovalOrder | str:
        """Return the removal order of group number `turn`, or why there is none."""
        raise NotImplementedError

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        return [self.order(turn, group, weights) for turn, group in enumerate(groups)]


def free_units(group: ChannelGroup) -> Ints:
    """Return the units of a group that may leave."""
    return np.delete(np.arange(group.width), list(group.fixed)) if group.fixed else np.arange(group.width)


def renumber(order: RemovalOrder, units: Ints) -> RemovalOrder:
    """Return an order over positions in `units` as one over the units themselves."""
    if np.array_equal(units, np.arange(len(units))):
        return order
    representative = np.where(order.representative >= 0, units[order.representative], NO_REPRESENTATIVE)
    return RemovalOrder(units[order.removed], order.heights, representative, order.damage)


def by_share(order: Ints, turn: int) -> RemovalOrder:
    r"""Return an order whose heights are shares of the layer: one threshold is one rate in every layer.

    Step i of n has the height $(i + \{turn \cdot \varphi\}) / n$. The fraction, another one for each layer, decides
    which layers round a rate up and which down, so that layers of one width do not all step at once and a budget
    is met closely; where rate x n is whole it changes nothing.

    >>> by_share(np.array([2, 0, 1, 3]), turn=0).heights.tolist()
    [0.0, 0.25, 0.5, 0.75]
    >>> by_share(np.array([2, 0, 1, 3]), turn=1).steps(0.5)
    2
    """
    return RemovalOrder(order, staggered(len(order), turn), np.full(len(order), NO_REPRESENTATIVE))


def staggered(count: int, turn: int) -> Floats:
    """Return `count` numbers from 0 to 1, evenly spaced, that differ from turn to turn."""
    found: Floats = (np.arange(count) + turn * _GOLDEN % 1) / max(1, count)
    return found


def by_rank(scores: Sequence[Floats | str], groups: Sequence[ChannelGroup]) -> list[RemovalOrder | str]:
    """Return orders whose heights are ranks over all layers: one threshold is one quantile of all channels.

    `scores[g]` has the score of every unit of group g (the lowest leaves first), or the reason why there is none.
    """
    units = [free_units(g) for g in groups]
    known = [g for g, s in enumerate(scores) if not isinstance(s, str)]
    pool = np.concatenate([np.empty(0), *(np.asarray(scores[g], np.float64)[units[g]] for g in known)])
    rank = np.empty(len(pool), np.int64)
    rank[np.argsort(pool, kind="stable")] = np.arange(len(pool))
    found: list[RemovalOrder | str] = [s if isinstance(s, str) else "" for s in scores]
    ends = np.cumsum([len(units[g]) for g in known])
    for g, end in zip(known, ends, strict=True):
        mine = rank[end - len(units[g]) : end]
        order = np.argsort(mine)
        found[g] = RemovalOrder(
            units[g][order], mine[order] / len(pool), np.full(len(mine), NO_REPRESENTATIVE)
        )
    return found
