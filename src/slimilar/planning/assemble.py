"""From the answers of a criterion, just given or stored, to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slimilar.errors import NothingToPrune, Option
from slimilar.graph.groups import Frozen
from slimilar.graph.reasons import FreezeKind, Reason
from slimilar.graph.structure import Structure
from slimilar.planning.cost import CostModel
from slimilar.planning.lazy_orders import LazyOrders
from slimilar.planning.plan import Plan
from slimilar.similarity.partial_linkage import PartialLinkage
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.wording import listed

Answer = RemovalOrder | Reason | str  # an order, or why a group has to stay
LazyAnswer = Answer | PartialLinkage  # or an order that is computed when it is used

EXCLUDED = Reason(FreezeKind.EXCLUDED, "excluded")


@dataclass(frozen=True, eq=False)
class Answers:
    """What a criterion answered for every group of a network, by name: all that a plan needs beside the network."""

    criterion: str
    orders: Mapping[str, LazyAnswer]
    exchangeable: bool = False  # whether reconstruction may exchange channels of the criterion's choice
    note: str = ""  # what the report says about the criterion


def assemble(structure: Structure, costs: CostModel, answers: Answers, min_channels: int = 1) -> Plan:
    """Return the plan of a traced network in which channels leave in the given orders."""
    frozen, groups, orders = list(structure.grouping.frozen), [], []
    for group in structure.grouping.groups:
        answer = answers.orders[group.name]
        if isinstance(answer, RemovalOrder | PartialLinkage):
            groups.append(group)
            orders.append(answer)
        else:
            reason = answer if isinstance(answer, Reason) else Reason(FreezeKind.CRITERION, answer)
            frozen.append(Frozen(group.name, group.width, reason.text, reason.kind))
    return Plan(
        tuple(groups), tuple(frozen), LazyOrders(orders), structure, costs, min_channels, answers.criterion,
        answers.exchangeable, answers.note,
    )  # fmt: skip


def nothing_to_prune(frozen: Sequence[Frozen]) -> NothingToPrune:
    """Return the error for a network in which no channel can be removed."""
    reasons: dict[str, list[str]] = {}
    for f in frozen:
        reasons.setdefault(f.reason, []).append(f.name)
    if not reasons:
        return NothingToPrune(
            "the model must have layers that write channels (convolution, linear), got none that the example input "
            "reaches: is this the model you mean?"
        )
    common = sorted(reasons, key=lambda reason: -len(reasons[reason]))[:5]  # the most frequent first
    reasons_listed = "; ".join(f"{listed(reasons[reason])}: {reason}" for reason in common)
    message = f"the model must have channels that can be removed, but none can ({reasons_listed})"
    if any(f.kind is FreezeKind.UNTRAINED_NORM for f in frozen):
        load = Option("weights", "FILE", "a model with its weights loaded")
        return NothingToPrune(f"{message}. Does the model lack its trained weights? Pass ", load)
    if any(f.kind is FreezeKind.NO_BATCH_NORM for f in frozen):
        span = Option("criterion", "span --calibrate IMAGES", 'criterion="span" with calibration=')
        plain = Option("criterion", "magnitude-l2 --ratio 0.3", 'criterion="magnitude-l2"')
        return NothingToPrune(
            f"{message}. Other criteria work without batch norms: pass ",
            span,
            " with some images, or ",
            plain,
        )
    return NothingToPrune(message)
