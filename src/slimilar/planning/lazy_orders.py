"""Removal orders that are computed when they are first used, because a threshold needs only a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import SupportsIndex, overload

from slimilar.planning.ties import untied
from slimilar.similarity.partial_linkage import PartialLinkage
from slimilar.similarity.removal_order import RemovalOrder


class LazyOrders(Sequence[RemovalOrder]):
    """The removal orders of all groups, some of which are linkages that have not been computed yet."""

    def __init__(self, given: Sequence[RemovalOrder | PartialLinkage]) -> None:
        self._given = tuple(given)

    @cached_property
    def _computed(self) -> tuple[RemovalOrder, ...]:
        return untied([o.whole() if isinstance(o, PartialLinkage) else o for o in self._given])

    @overload
    def __getitem__(self, index: SupportsIndex) -> RemovalOrder: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemovalOrder, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> RemovalOrder | tuple[RemovalOrder, ...]:
        return self._computed[index]

    def __len__(self) -> int:
        return len(self._given)

    def below(self, thresholds: Sequence[float]) -> list[RemovalOrder] | None:
        """Return the steps of height below each group's threshold; None if that takes the whole orders."""
        if "_computed" in vars(self):
            return None
        found = []
        for order, threshold in zip(self._given, thresholds, strict=True):
            part = order.below(threshold) if isinstance(order, PartialLinkage) else None
            if part is None:
                return None
            found.append(part)
        return found
