"""Training phases: what a criterion does to a network while it trains, as hooks of `slimilar.train`.

hooks = slimilar.criteria.training_hooks("soft", model, example, flops=0.5)
trained = slimilar.train.train(model, data, recipe, hooks=hooks).model
small = slimilar.prune(trained, example, criterion="soft", flops=0.5).model
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import nn

from slimilar.criteria.base import by_share, free_units
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup, Residual
from slimilar.planning.budgets import Budget
from slimilar.planning.cost import cost_model
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import RoundTo
from slimilar.surgery.probe import find_structure
from slimilar.utils.modules import check_model
from slimilar.utils.pytree import Example

if TYPE_CHECKING:
    from slimilar.criteria.base import Criterion
    from slimilar.train import Hooks


@runtime_checkable
class TrainingPhase(Protocol):
    """A criterion with a training phase."""

    @property
    def name(self) -> str:
        """Return the name under which the criterion is shown."""
        ...

    def hooks(self, groups: Sequence[ChannelGroup], counts: Sequence[int] | None) -> Hooks:
        """Return what to do in training; `counts` has how many units of each group will leave, if that is known."""
        ...


def training_hooks(
    criterion: Criterion | str,
    model: nn.Module,
    example: Example,
    *,
    flops: Budget | None = None,
    macs: Budget | None = None,
    params: Budget | None = None,
    ratio: float | None = None,
    round_to: RoundTo = "auto",
    residual: Residual = "inner",
    exclude: Iterable[str] = (),
    min_channels: int = 1,
) -> Hooks:
    """Return the training phase of a criterion, to be passed to `slimilar.train.train(..., hooks=...)`.

    A budget (or the `ratio` of channels that every layer loses) is that of the pruning to come. Only methods that must
    know beforehand how many channels leave look at it ("soft"); others find out by themselves. A criterion object,
    such as `Slimming(strength=1e-5)`, brings settings of its own; `round_to`, `residual`, `exclude` and `min_channels`
    should be those of the pruning.
    """
    from slimilar.criteria import make

    chosen = make(criterion)
    if not isinstance(chosen, TrainingPhase):
        raise InvalidInput(
            f'criterion "{chosen.name}" has no training phase: prune with it right away, or train without hooks'
        )
    structure = find_structure(check_model(model), example, residual)
    out = set(exclude)
    groups = [g for g in structure.grouping.groups if not _inside(g.producers, out)]
    asked = {"flops": flops, "macs": macs, "params": params, "ratio": ratio}
    given = {k: v for k, v in asked.items() if v is not None}
    if not given:
        return chosen.hooks(groups, None)
    orders = tuple(by_share(free_units(g), turn) for turn, g in enumerate(groups))
    costs = cost_model(structure.trace, structure.grouping)
    plan = Plan(tuple(groups), (), orders, structure, costs, min_channels, chosen.name)
    widths = plan.at(**given, round_to=round_to).widths  # type: ignore[arg-type]
    return chosen.hooks(groups, [g.width - widths[g.name] for g in groups])


def _inside(producers: Sequence[str], excluded: set[str]) -> bool:
    return any(w == name or w.startswith(f"{name}.") for w in producers for name in excluded)
