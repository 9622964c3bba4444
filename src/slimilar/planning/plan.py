"""A plan: which channels could be removed, in which order, and what every cut costs. No model is changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slimilar.errors import InvalidInput, Option, UnreachableBudget
from slimilar.graph.groups import ChannelGroup, Frozen
from slimilar.graph.structure import Structure
from slimilar.planning.budgets import Budget, parse_budget
from slimilar.planning.cost import Cost, CostModel, human
from slimilar.planning.cut import Curve, Cut, Removal
from slimilar.planning.lazy_orders import LazyOrders
from slimilar.planning.rounding import (
    WORTH,
    Allocation,
    Rounding,
    RoundTo,
    StepBlocks,
    allocate,
    first_reached,
    rounded_up,
)
from slimilar.planning.target import COSTS, PruningTarget
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.surgery.branches import without_branches
from slimilar.surgery.rewrite import Kept
from slimilar.utils.suggestions import choose


@dataclass(frozen=True, eq=False)
class Plan:
    """Which channels could be removed, in which order, and what every cut costs.

    Nothing in it changes. What is derived (`before`, the heights of all steps) and `LazyOrders` are computed on first
    use.
    """

    groups: tuple[ChannelGroup, ...]
    frozen: tuple[Frozen, ...]
    orders: tuple[RemovalOrder, ...] | LazyOrders  # one for each group
    structure: Structure
    costs: CostModel
    min_channels: int  # that every group keeps; with 0, residual branches may go altogether
    criterion: str
    exchangeable: bool = False  # whether reconstruction may exchange channels of the criterion's choice
    note: str = ""  # what the criterion says about its sources: moments measured, and on how many images

    @cached_property
    def before(self) -> Cost:
        """What the model costs as it is."""
        return self.costs.at(np.ones(self.structure.grouping.unit_count, np.bool_))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first channel of each group, numbered over all groups of the network."""
        grouping = self.structure.grouping
        start = {id(group): offset for group, offset in zip(grouping.groups, grouping.offsets, strict=True)}
        return tuple(start[id(group)] for group in self.groups)

    def __repr__(self) -> str:
        widths = sum(g.width for g in self.groups)
        return f"Plan({len(self.groups)} groups, {widths} channels, {self.before}; {len(self.frozen)} frozen)"

    # --- cuts -----------------------------------------------------------------------------------------------

    def at(
        self,
        threshold: float | None = None,
        *,
        flops: Budget | None = None,
        macs: Budget | None = None,
        params: Budget | None = None,
        ratio: float | None = None,
        quantile: float | None = None,
        round_to: RoundTo = "auto",
        thresholds: Mapping[str, float] | None = None,
    ) -> Cut:
        """Return the cut at a threshold, or at the smallest threshold that meets a budget.

        A budget is a share (0.5), a number (4_400_000_000) or a text ("4.4G", "50%"). With a `ratio` every group loses
        that share of its channels; with a `quantile` that share of all channels leaves, those of least height.
        `round_to=8` makes widths multiples of 8: a threshold removes no channel above it, so widths are rounded up; a
        budget rounds up or down, whichever keeps more. "auto" stands for 16, and less where 16 cannot reach a budget or
        costs narrow groups too much; 1 takes every width. `thresholds` overrides that of single groups, by name.
        """
        return self.cut(
            PruningTarget.of(
                threshold=threshold, flops=flops, macs=macs, params=params, ratio=ratio, quantile=quantile,
                round_to=round_to, thresholds=thresholds,
            )
        )  # fmt: skip

    def cut(self, target: PruningTarget) -> Cut:
        """Return the cut that meets a target other than a latency, which has to be measured."""
        if target.kind == "latency":
            raise InvalidInput(
                Option("latency"),
                " must be measured on the model, which a plan does not hold: pass it to prune",
            )
        overrides = self.overrides(target.thresholds)
        if target.kind in COSTS:
            found, rounding = self._allocated(target, overrides, give_back=True)
            cut = self.cut_after(found.threshold, found.steps, rounding)
            return replace(cut, by_threshold=rounding.multiple == 1)
        amount, rounding = float(target.amount), target.rounding
        if target.kind == "ratio":
            wanted = [math.floor(amount * group.width + 1e-9) for group in self.groups]
            for g, threshold in overrides.items():
                wanted[g] = self.orders[g].steps(threshold)
            return self.cut_after(amount, self._permitted(wanted), rounding)
        if target.kind == "quantile":
            amount = self._quantile(amount)
        parts = self._below(amount, overrides)
        if parts is not None:
            return self.cut_after(amount, [len(part) for part in parts], rounding, parts)
        wanted = [order.steps(overrides.get(g, amount)) for g, order in enumerate(self.orders)]
        return self.cut_after(amount, self._permitted(wanted), rounding)

    def threshold_within(self, target: PruningTarget) -> float:
        """Return the smallest threshold that is within a budget, where widths are rounded up."""
        found = self._allocated(target, self.overrides(target.thresholds), give_back=False)
        return found[0].threshold

    def curve(self) -> Curve:
        """Return every point of the trade-off, from nothing removed to all that can be."""
        heights = self._heights
        left_at = np.full(self.structure.grouping.unit_count, len(heights) + 1, np.int64)
        for g, order in enumerate(self.orders):
            steps = self._most_steps(g)
            left_at[self.starts[g] + order.removed[:steps]] = 1 + np.searchsorted(
                heights, order.heights[:steps]
            )
        states = len(heights) + 1
        widths = {}
        for start, group in zip(self.starts, self.groups, strict=True):
            gone = np.bincount(left_at[start : start + group.width], minlength=states + 1)[:states]
            widths[group.name] = group.width - np.cumsum(gone)
        return Curve(np.append(0.0, np.nextafter(heights, 2)), *self.costs.along(left_at, states), widths)

    # --- how many steps of each order ---------------------------------------------------------------------------

    def limit(self, g: int) -> int:
        """Return how many channels of a group may leave at most."""
        least = self.min_channels or (0 if self._is_branch(g) else 1)
        return max(0, min(len(self.orders[g]), self.groups[g].width - least))

    def _is_branch(self, g: int) -> bool:
        """Tell whether a group may lose its last channel, because a residual branch goes with it."""
        number = self.structure.grouping.offsets.index(self.starts[g])
        return number in self.structure.branches

    def _most_steps(self, g: int) -> int:
        """Return how many steps of a group have a height below 1 and may be taken."""
        return min(self.limit(g), int(np.searchsorted(self.orders[g].heights, 1.0)))

    @cached_property
    def _heights(self) -> NDArray[np.float64]:
        """The heights of all steps that may be taken, ascending."""
        taken = (order.heights[: self._most_steps(g)] for g, order in enumerate(self.orders))
        return np.unique(np.concatenate([np.empty(0), *taken]))

    def overrides(self, thresholds: Mapping[str, float]) -> dict[int, float]:
        """Return the thresholds of single groups by their place in the plan."""
        names = [g.name for g in self.groups]
        return {names.index(choose(name, names, "group")): float(t) for name, t in thresholds.items()}

    def _quantile(self, share: float) -> float:
        """Return the threshold below which a share of all channels leaves, or less where heights are equal."""
        heights = np.sort(np.concatenate([np.empty(0), *(o.heights for o in self.orders)]))
        count = math.floor(share * sum(g.width for g in self.groups) + 1e-9)
        return min(1.0, float(heights[count])) if count < len(heights) else 1.0

    def _below(self, threshold: float, overrides: Mapping[int, float]) -> list[RemovalOrder] | None:
        """Return the steps below a threshold, if they can be had without the rest and all of them may be taken."""
        if not isinstance(self.orders, LazyOrders):
            return None
        found = self.orders.below([overrides.get(g, threshold) for g in range(len(self.groups))])
        if found is None:
            return None
        fits = (len(o) <= g.width - self.min_channels for o, g in zip(found, self.groups, strict=True))
        return found if all(fits) else None

    def _permitted(self, wanted: Sequence[int]) -> list[int]:
        """Return how many steps of each group are taken if no more than may leave are."""
        return [min(self.limit(g), steps) for g, steps in enumerate(wanted)]

    def blocks(self, rounding: Rounding, overrides: Mapping[int, float]) -> list[StepBlocks]:
        """Return the blocks of steps of every group that leave together; an override settles its group."""
        measured = all(order.damage is not None for order in self.orders)
        found = []
        for g, (group, order) in enumerate(zip(self.groups, self.orders, strict=True)):
            if g in overrides:
                steps = min(self.limit(g), order.steps(overrides[g]))
                found.append(StepBlocks.settled(rounded_up(group.width, steps, rounding.of(group))))
            else:
                most = self._most_steps(g)
                damage = order.damage[:most] if measured and order.damage is not None else None
                found.append(StepBlocks.of(order.heights[:most], group.width, rounding.of(group), damage))
        return found

    # --- from steps to a cut ------------------------------------------------------------------------------------

    def _multiples(self, rounding: Rounding) -> list[int]:
        return [rounding.of(group) for group in self.groups]

    def _mask(self, steps: Sequence[int], orders: Sequence[RemovalOrder]) -> Kept:
        mask = np.ones(self.structure.grouping.unit_count, np.bool_)
        for start, order, count in zip(self.starts, orders, steps, strict=True):
            mask[start + order.removed[:count]] = False
        return without_branches(self.structure, mask)

    def cut_after(
        self,
        threshold: float,
        wanted: Sequence[int],
        rounding: Rounding,
        orders: Sequence[RemovalOrder] | None = None,
    ) -> Cut:
        """Return the cut that takes so many steps of each order, or fewer where widths are rounded up."""
        orders = self.orders if orders is None else orders
        steps = [
            rounded_up(group.width, count, rounding.of(group))
            for group, count in zip(self.groups, wanted, strict=True)
        ]
        mask = self._mask(steps, orders)
        kept, removals = {}, {}
        for start, group, order, count in zip(self.starts, self.groups, orders, steps, strict=True):
            kept[group.name] = tuple(np.flatnonzero(mask[start : start + group.width]).tolist())
            if len(kept[group.name]) == group.width - count:  # else the group goes with a branch
                removals[group.name] = Removal(order, count, group.width)
        held = sum(wanted) - sum(steps)
        return Cut(threshold, kept, removals, self.costs.at(mask), self.before, mask, rounding.multiple, held)

    def _allocated(
        self, target: PruningTarget, overrides: Mapping[int, float], give_back: bool
    ) -> tuple[Allocation, Rounding]:
        """Return how many steps meet a budget, at the largest multiple that reaches it well."""
        before = getattr(self.before, target.kind)
        limit = parse_budget(target.kind, target.amount, before) - target.reserve

        def cost(steps: Sequence[int]) -> int:
            return self.costs.total(self._mask(steps, self.orders), target.kind)

        def found(rounding: Rounding) -> Allocation | None:
            blocks = self.blocks(rounding, overrides)
            return allocate(blocks, cost, limit, give_back=give_back and rounding.multiple > 1)

        tried = target.roundings if give_back else target.roundings[target.roundings.index(target.rounding) :]
        best = first_reached(tried, found, self._multiples, WORTH if give_back else math.inf)
        if best is not None:
            return best
        blocks = self.blocks(tried[-1], overrides)
        smallest = cost([int(b.ends[-1]) for b in blocks])
        raise _out_of_reach(target, smallest + target.reserve, before)


def _out_of_reach(target: PruningTarget, smallest: int, before: int) -> UnreachableBudget:
    return UnreachableBudget(
        Option(target.kind),
        f" must be at least {human(smallest)} ({smallest / before:.1%} of the original), the smallest this plan "
        f"reaches, got {target.amount!r}: ask for more, or allow more to be pruned (",
        Option("residual", "joint"), ", a smaller ", Option("min_channels"), " or ", Option("round_to"),
        ", fewer excluded layers)",
    )  # fmt: skip
