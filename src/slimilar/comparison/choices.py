"""Removal orders kept in a file: one run of a criterion serves every budget and reconstruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slimilar.criteria import available, facts
from slimilar.errors import StoreError
from slimilar.planning.assemble import Answer, Answers
from slimilar.planning.plan import Plan
from slimilar.similarity.removal_order import RemovalOrder


def encode(plan: Plan) -> dict[str, Any]:
    """Return the removal orders of a plan, as JSON."""
    orders = {
        group.name: {
            "removed": order.removed.tolist(),
            "heights": order.heights.tolist(),
            "representative": order.representative.tolist(),
        }
        for group, order in zip(plan.groups, plan.orders, strict=True)
    }
    reasons = {f.name: f.reason for f in plan.frozen}
    return {
        "criterion": plan.criterion,
        "exchangeable": plan.exchangeable,
        "orders": {**reasons, **orders},
    }


def decode(data: Mapping[str, Any]) -> Answers:
    """Return what `encode` was given, from which a plan is made again."""
    try:
        orders: dict[str, Answer] = {
            name: order if isinstance(order, str) else _order(**order)
            for name, order in data["orders"].items()
        }
        criterion = data["criterion"]
        known = (
            criterion in available() and facts(criterion).exchangeable
        )  # files of earlier versions do not say
        return Answers(criterion, orders, bool(data.get("exchangeable", known)))
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"a choice must hold removal orders, but: {error}; delete it and call again"
        ) from error


def _order(removed: Any, heights: Any, representative: Any = None, stand_in: Any = None) -> RemovalOrder:
    """Return a stored removal order; files of earlier versions call its representatives `stand_in`."""
    return RemovalOrder(removed, heights, stand_in if representative is None else representative)
