"""Who leaves in which order, kept in a file: one look at the images serves every budget and substitute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slimilar.criteria import Weights
from slimilar.errors import StoreError
from slimilar.graph.groups import ChannelGroup
from slimilar.planning.plan import Plan
from slimilar.similarity.removal_order import RemovalOrder


@dataclass(frozen=True, eq=False)
class Remembered:
    """A criterion that answers as it did for a plan."""

    name: str
    answers: Mapping[str, RemovalOrder | str]

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the answers again."""
        return [self.answers[group.name] for group in groups]


def encode(plan: Plan) -> dict[str, Any]:
    """Return the answers behind a plan, as JSON knows them."""
    orders = {
        group.name: {
            "removed": order.removed.tolist(),
            "heights": order.heights.tolist(),
            "stand_in": order.stand_in.tolist(),
        }
        for group, order in zip(plan.groups, plan.orders, strict=True)
    }
    return {"criterion": plan.criterion, "orders": {**{f.name: f.reason for f in plan.frozen}, **orders}}


def decode(data: Mapping[str, Any]) -> Remembered:
    """Return what `encode` was given, as a criterion."""
    try:
        answers = {
            name: order if isinstance(order, str) else RemovalOrder(**order)
            for name, order in data["orders"].items()
        }
        return Remembered(data["criterion"], answers)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"a choice must hold removal orders, but: {error}; delete it and call again"
        ) from error
