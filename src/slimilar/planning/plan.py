"""What could be removed, at what price: removal orders, thresholds, budgets, rounding. Nothing is touched."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from slimilar.errors import InvalidInput, NothingToPrune, UnreachableBudget
from slimilar.graph.groups import ChannelGroup, Frozen, Grouping
from slimilar.graph.structure import Structure
from slimilar.planning.cost import Cost, CostModel, human
from slimilar.similarity.partial_linkage import LateOrder
from slimilar.similarity.removal_order import Cluster, RemovalOrder, clusters_after
from slimilar.surgery.rewrite import Kept
from slimilar.utils.suggestions import choose
from slimilar.utils.wording import listed

Budget = float | int | str


@dataclass(frozen=True, eq=False)
class Cut:
    """One way to prune: what stays, and what it costs. Exact, without building the model."""

    threshold: float  # or the ratio, where that was asked for
    kept: Mapping[str, tuple[int, ...]]  # group -> units that stay
    clusters: Mapping[str, tuple[Cluster, ...]]
    widths: Mapping[str, int]
    cost: Cost
    before: Cost
    mask: Kept  # over all units of all groups

    @property
    def flops(self) -> int:
        """FLOPs in the paper's convention."""
        return self.cost.flops

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.cost.macs

    @property
    def params(self) -> int:
        """Parameters."""
        return self.cost.params

    def __str__(self) -> str:
        saved = 1 - self.flops / max(1, self.before.flops)
        fewer = 1 - self.params / max(1, self.before.params)
        return (
            f"threshold {self.threshold:.4g}: {human(self.before.flops)} -> {human(self.flops)} FLOPs (-{saved:.1%}), "
            f"{human(self.before.params)} -> {human(self.params)} parameters (-{fewer:.1%})"
        )

    __repr__ = __str__


@dataclass(frozen=True)
class Step:
    """One point of the trade-off."""

    threshold: float
    flops: int
    macs: int
    params: int
    widths: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Curve:
    """Every step of the trade-off, as arrays; a `Step` by index."""

    threshold: NDArray[np.float64]
    flops: NDArray[np.int64]
    macs: NDArray[np.int64]
    params: NDArray[np.int64]
    widths: Mapping[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.threshold)

    def __getitem__(self, i: int) -> Step:
        widths = {name: int(w[i]) for name, w in self.widths.items()}
        return Step(
            float(self.threshold[i]), int(self.flops[i]), int(self.macs[i]), int(self.params[i]), widths
        )

    def __iter__(self) -> Iterator[Step]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, eq=False)
class Plan:
    """Which channels could leave, in which order, and what each cut costs."""

    groups: tuple[ChannelGroup, ...]
    frozen: tuple[Frozen, ...]
    orders: tuple[RemovalOrder, ...] | Orders  # one for each group
    structure: Structure
    costs: CostModel
    min_channels: int
    criterion: str

    # --- asking ---------------------------------------------------------------------------------------------

    def at(
        self,
        threshold: float | None = None,
        *,
        flops: Budget | None = None,
        macs: Budget | None = None,
        params: Budget | None = None,
        ratio: float | None = None,
        quantile: float | None = None,
        round_to: int = 1,
        thresholds: Mapping[str, float] | None = None,
    ) -> Cut:
        """Return what stays below a threshold, or at the smallest threshold that meets a budget.

        A budget is a share (0.5), a number (4_400_000_000) or a text ("4.4G", "50%"). With a `ratio` every group loses
        that share of its channels; with a `quantile` that share of all channels leaves, those of least height.
        `round_to=8` undoes the costliest merges until widths are multiples of 8. `thresholds` overrides single
        groups, by name.
        """
        asked = {
            "threshold": threshold, "flops": flops, "macs": macs, "params": params, "ratio": ratio,
            "quantile": quantile,
        }  # fmt: skip
        given = {k: v for k, v in asked.items() if v is not None}
        if len(given) != 1:
            raise InvalidInput(
                f"exactly one of threshold, flops, macs, params, ratio and quantile must be given, "
                f"got {', '.join(given) or 'none of them'}"
            )
        if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
            raise InvalidInput(f"round_to must be a whole number of at least 1, got {round_to!r}")
        fixed = self._overrides(thresholds or {})
        ((kind, amount),) = given.items()
        if kind in ("flops", "macs", "params"):
            return self._meet(kind, amount, round_to, fixed)
        amount = check_threshold(amount, kind)
        if kind == "quantile":
            amount = self._quantile(amount)
        return self._cut(amount, round_to, fixed, by_ratio=kind == "ratio")

    def curve(self) -> Curve:
        """Return every step of the trade-off, from nothing removed to all that can be."""
        heights = self._heights
        left_at = np.full(self.structure.grouping.unit_count, len(heights) + 1, np.int64)
        for start, order, steps in self._ordered():
            left_at[start + order.removed[:steps]] = 1 + np.searchsorted(heights, order.heights[:steps])
        states = len(heights) + 1
        flops, macs, params = self.costs.along(left_at, states)
        widths = {}
        for g, group in enumerate(self.groups):
            start = self._start(g)
            gone = np.bincount(left_at[start : start + group.width], minlength=states + 1)[:states]
            widths[group.name] = group.width - np.cumsum(gone)
        return Curve(np.append(0.0, np.nextafter(heights, 2)), flops, macs, params, widths)

    @cached_property
    def before(self) -> Cost:
        """What the model costs as it is."""
        return self.costs.at(np.ones(self.structure.grouping.unit_count, np.bool_))

    def __repr__(self) -> str:
        widths = sum(g.width for g in self.groups)
        return f"Plan({len(self.groups)} groups, {widths} channels, {self.before}; {len(self.frozen)} frozen)"

    # --- answering ------------------------------------------------------------------------------------------

    def _start(self, g: int) -> int:
        grouping: Grouping = self.structure.grouping
        return grouping.offsets[next(i for i, x in enumerate(grouping.groups) if x is self.groups[g])]

    @cached_property
    def _starts(self) -> list[int]:
        return [self._start(g) for g in range(len(self.groups))]

    def _limit(self, g: int) -> int:
        """Return how many channels of a group may leave at most."""
        return max(0, min(self._lengths[g], self.groups[g].width - self.min_channels))

    @cached_property
    def _lengths(self) -> list[int]:
        return self.orders.lengths() if isinstance(self.orders, Orders) else [len(o) for o in self.orders]

    def _ordered(self) -> Iterator[tuple[int, RemovalOrder, int]]:
        """Yield the first unit, the order, and the number of steps that may be taken below threshold 1."""
        for g, order in enumerate(self.orders):
            yield self._starts[g], order, min(self._limit(g), int(np.searchsorted(order.heights, 1.0)))

    @cached_property
    def _heights(self) -> NDArray[np.float64]:
        return np.unique(np.concatenate([np.empty(0), *(o.heights[:n] for _, o, n in self._ordered())]))

    def _overrides(self, thresholds: Mapping[str, float]) -> dict[int, float]:
        names = [g.name for g in self.groups]
        return {names.index(choose(n, names, "group")): check_threshold(t) for n, t in thresholds.items()}

    def _quantile(self, share: float) -> float:
        """Return the threshold below which a share of all channels leaves, or less where heights are equal."""
        heights = np.sort(np.concatenate([np.empty(0), *(o.heights for o in self.orders)]))
        count = math.floor(share * sum(g.width for g in self.groups) + 1e-9)
        return min(1.0, float(heights[count])) if count < len(heights) else 1.0

    def _steps(
        self, threshold: float, round_to: int, fixed: Mapping[int, float], by_ratio: bool = False
    ) -> list[int]:
        found = []
        for g, order in enumerate(self.orders):
            width = self.groups[g].width
            wanted = order.steps(fixed.get(g, threshold))
            if by_ratio and g not in fixed:
                wanted = math.floor(threshold * width + 1e-9)
            steps = min(self._limit(g), wanted)
            kept = min(width, -(-(width - steps) // round_to) * round_to)
            found.append(width - kept)
        return found

    def _below(self, threshold: float, fixed: Mapping[int, float]) -> list[RemovalOrder] | None:
        """Return the steps below a threshold alone, where they can be had without the rest and none is left out."""
        if not isinstance(self.orders, Orders):
            return None
        found = self.orders.below([fixed.get(g, threshold) for g in range(len(self.groups))])
        if found is None or any(len(order) > self._limit(g) for g, order in enumerate(found)):
            return None
        return found

    def _mask(self, orders: Sequence[RemovalOrder], steps: list[int]) -> Kept:
        mask = np.ones(self.structure.grouping.unit_count, np.bool_)
        for g, order in enumerate(orders):
            mask[self._starts[g] + order.removed[: steps[g]]] = False
        return mask

    def _cut(
        self, threshold: float, round_to: int, fixed: Mapping[int, float], by_ratio: bool = False
    ) -> Cut:
        orders = None if by_ratio or round_to > 1 else self._below(threshold, fixed)
        if orders is not None:
            steps = [len(order) for order in orders]
        else:
            orders, steps = list(self.orders), self._steps(threshold, round_to, fixed, by_ratio)
        mask = self._mask(orders, steps)
        kept = {}
        for start, group in zip(self._starts, self.groups, strict=True):
            kept[group.name] = tuple(np.flatnonzero(mask[start : start + group.width]).tolist())
        widths = {name: len(units) for name, units in kept.items()}
        found = _Clusters(
            {g.name: (order, n, g.width) for g, order, n in zip(self.groups, orders, steps, strict=True)}
        )
        return Cut(threshold, kept, found, widths, self.costs.at(mask), self.before, mask)

    def _meet(self, kind: str, budget: Budget, round_to: int, fixed: Mapping[int, float]) -> Cut:
        """Search for the smallest threshold whose cost is within the budget; cost never rises with it."""
        limit = parse_budget(kind, budget, getattr(self.before, kind))
        thresholds = np.append(0.0, np.nextafter(self._heights, 2))

        def cost(i: int) -> int:
            mask = self._mask(self.orders, self._steps(float(thresholds[i]), round_to, fixed))
            return int(getattr(self.costs.at(mask), kind))

        low, high = 0, len(thresholds) - 1
        if (smallest := cost(high)) > limit:
            raise UnreachableBudget(
                f"{kind} must be at least {human(smallest)} ({smallest / getattr(self.before, kind):.1%} of the "
                f"original), the smallest this plan reaches, got {budget!r}: ask for more, or allow more to be pruned "
                '(residual="joint", a smaller min_channels or round_to, fewer excluded layers)'
            )
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if cost(middle) <= limit else (middle + 1, high)
        return self._cut(float(thresholds[low]), round_to, fixed)


class _Clusters(Mapping[str, tuple[Cluster, ...]]):
    """The clusters of every group, made when they are looked at."""

    def __init__(self, source: Mapping[str, tuple[RemovalOrder, int, int]]) -> None:
        self._source = source
        self._made: dict[str, tuple[Cluster, ...]] = {}

    def __getitem__(self, name: str) -> tuple[Cluster, ...]:
        if name not in self._made:
            self._made[name] = tuple(clusters_after(*self._source[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return repr(dict(self))


class Orders(Sequence[RemovalOrder]):
    """The removal orders of all groups, `untied` when they are looked at."""

    def __init__(self, given: Sequence[RemovalOrder]) -> None:
        self._given = tuple(given)

    @cached_property
    def _untied(self) -> tuple[RemovalOrder, ...]:
        return untied(self._given)

    @overload
    def __getitem__(self, index: SupportsIndex) -> RemovalOrder: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemovalOrder, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> RemovalOrder | tuple[RemovalOrder, ...]:
        return self._untied[index]

    def __len__(self) -> int:
        return len(self._given)

    def lengths(self) -> list[int]:
        """Return how many steps each has."""
        return [len(order) for order in self._given]

    def below(self, thresholds: Sequence[float]) -> list[RemovalOrder] | None:
        """Return the steps of height below each group's threshold, or None where only the whole orders tell."""
        if "_untied" in vars(self):
            return None
        found = []
        for order, threshold in zip(self._given, thresholds, strict=True):
            part = order.below(threshold) if isinstance(order, LateOrder) else None
            if part is None:
                return None
            found.append(part)
        return found


_TIE = 1e-12


def untied(orders: Sequence[RemovalOrder]) -> tuple[RemovalOrder, ...]:
    """Return orders in which steps of one height differ by next to nothing, all groups in turn.

    So a budget can be met step by step where a criterion sees no difference, as among channels that are always silent.

    >>> a = RemovalOrder(removed=[0, 1], heights=[0.0, 0.0], stand_in=[-1, -1])
    >>> [order.heights.tolist() for order in untied([a, a])]
    [[0.0, 2e-12], [1e-12, 3e-12]]
    """
    heights = np.concatenate([np.empty(0), *(o.heights for o in orders)])
    group = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
    _, run, length = np.unique(np.stack([group, heights]), axis=1, return_inverse=True, return_counts=True)
    run = run.reshape(-1)
    turn = np.arange(len(heights)) - np.searchsorted(run, run)  # runs are in order, as heights never fall
    sequence = np.lexsort((group, (turn + 0.5) / length[run], heights))
    level, first, count = np.unique(heights[sequence], return_index=True, return_counts=True)
    room = np.minimum(_TIE, np.diff(level, append=np.inf) / (count + 1))
    place = np.empty(len(heights))
    place[sequence] = (np.arange(len(heights)) - np.repeat(first, count)) * np.repeat(room, count)
    ends = np.cumsum([0, *(len(o) for o in orders)])
    moved = np.where(heights < 1, heights + place, heights)
    return tuple(
        o if np.array_equal(moved[a:b], o.heights) else RemovalOrder(o.removed, moved[a:b], o.stand_in)
        for o, a, b in zip(orders, ends[:-1], ends[1:], strict=True)
    )


def check_threshold(threshold: Any, kind: str = "threshold") -> float:
    """Refuse what is not a number from 0 to 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= float(threshold) <= 1:
        raise InvalidInput(f"{kind} must be a number from 0 to 1, got {threshold!r}")
    return float(threshold)


_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "%": 0.01}


def parse_budget(kind: str, budget: object, before: int) -> float:
    """Return a budget as a number.

    >>> parse_budget("flops", 0.5, 100), parse_budget("flops", "4.4G", 10**10), parse_budget("params", "25%", 200)
    (50.0, 4400000000.0, 50.0)
    """
    message = f'{kind} must be a share such as 0.5, or a number such as "10M" or "4.4G", got {budget!r}'
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgbt%]?)\s*", budget.lower())
        if match is None:
            raise InvalidInput(message)
        number, share = (
            float(match[1]) * _UNITS[match[2]],
            match[2] == "%" or (not match[2] and float(match[1]) <= 1),
        )
    elif isinstance(budget, bool) or not isinstance(budget, Real):
        raise InvalidInput(message)
    else:
        number, share = float(budget), float(budget) <= 1
    if not number > 0 or not np.isfinite(number):
        raise InvalidInput(message)
    return number * before if share else number


def nothing(frozen: tuple[Frozen, ...]) -> NothingToPrune:
    """Return the error for a model in which nothing can be pruned."""
    if not frozen:
        return NothingToPrune(
            "the model must have layers that write channels (convolution, linear), got none that the example input "
            "reaches: is this the model you mean?"
        )
    reasons: dict[str, list[str]] = {}
    for f in frozen:
        reasons.setdefault(f.reason, []).append(f.name)
    common = sorted(reasons, key=lambda reason: -len(reasons[reason]))[:5]  # what holds for most comes first
    why = "; ".join(f"{listed(reasons[reason])}: {reason}" for reason in common)
    return NothingToPrune(
        f"the model must have channels that can leave, but all of them have to stay ({why})"
    )
