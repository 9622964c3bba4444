"""Budgets that are valid, but hardly meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimilar.errors import InvalidInput, Option

if TYPE_CHECKING:
    from slimilar.planning.cost import Cost
    from slimilar.planning.target import PruningTarget

# A number without a unit from 1 to this is a share or a percentage gone wrong, such as 1.5 or 50.
_LEAST = 100


def check_budget_unit(target: PruningTarget) -> None:
    """Refuse a budget such as 1.5 or 50, before any work: it would be read as so many FLOPs."""
    from slimilar.planning.budgets import check_budget
    from slimilar.planning.target import COSTS

    if target.kind not in COSTS:
        return
    number, is_share = check_budget(target.kind, target.amount)
    bare = str(target.amount).strip()[-1:].isdigit()
    if bare and not is_share and number < _LEAST:
        raise InvalidInput(
            Option(target.kind),
            f" must be a share of at most 1 such as 0.5 or 50%, or a number such as 10M, got {target.amount}",
        )


def check_budget_size(target: PruningTarget, before: Cost) -> None:
    """Refuse a budget that the unpruned network meets already."""
    from slimilar.planning.budgets import parse_budget
    from slimilar.planning.cost import human
    from slimilar.planning.target import COSTS

    if target.kind not in COSTS:
        return
    cost = int(getattr(before, target.kind))
    if parse_budget(target.kind, target.amount, cost) > cost:
        raise InvalidInput(
            Option(target.kind),
            f" must be below the {human(cost)} of the unpruned network, got {target.amount}: nothing would be pruned",
        )
