"""How far to prune: one target for `prune`, `Plan.at`, the command line and the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from slimilar.errors import InvalidInput, Option
from slimilar.planning.budgets import Budget, check_budget, check_latency
from slimilar.planning.rounding import (
    AUTO,
    Rounding,
    RoundTo,
    check_rounding,
    dictated_rounding,
    roundings,
)
from slimilar.utils.checks import check_share

TargetKind = Literal["threshold", "flops", "macs", "params", "ratio", "quantile", "latency"]
KINDS: tuple[TargetKind, ...] = get_args(TargetKind)
COSTS: tuple[TargetKind, ...] = ("flops", "macs", "params")


@dataclass(frozen=True)
class PruningTarget:
    """How far to prune: what is limited, to which amount, and how widths are rounded.

    `kind` is one of `KINDS`. A `threshold` bounds the heights of removed channels; `flops`, `macs` and `params` are
    budgets; `latency` is a budget of measured time; every group loses a `ratio` of its channels; a `quantile` of all
    channels leaves, those of least height.

    >>> PruningTarget.of(flops="50%", round_to=8)
    PruningTarget(kind='flops', amount='50%', round_to=8, thresholds={}, reserve=0, multiple=16)
    """

    kind: TargetKind
    amount: Budget
    round_to: RoundTo = "auto"  # widths are multiples of it
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of single groups, by name
    reserve: int = 0  # of a budget of FLOPs or parameters: held back for biases that reconstruction adds
    multiple: int = AUTO  # what "auto" stands for; round_to="measure" measures it

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"the kind of a target must be one of {', '.join(KINDS)}, got {self.kind!r}")
        check_rounding(self.round_to)
        for threshold in self.thresholds.values():
            check_share(threshold)
        if self.kind in COSTS:
            check_budget(self.kind, self.amount)
        elif self.kind == "latency":
            check_latency(self.amount)
        else:
            check_share(self.amount, self.kind)

    @property
    def roundings(self) -> tuple[Rounding, ...]:
        """What to try for a budget, in turn."""
        self._check_measured()
        return roundings(self.round_to, self.multiple)

    @property
    def rounding(self) -> Rounding:
        """That of a threshold, a ratio or a quantile, which dictate widths."""
        self._check_measured()
        return dictated_rounding(self.round_to, self.multiple)

    def _check_measured(self) -> None:
        if self.round_to == "measure":
            raise InvalidInput(
                Option("round_to"),
                ' must be measured in a runtime: pass "measure" to prune or apply, and a number or "auto" here',
            )

    @classmethod
    def of(
        cls, *, round_to: RoundTo = "auto", thresholds: Mapping[str, float] | None = None, **amounts: Any
    ) -> PruningTarget:
        """Return the target of which exactly one amount is given; amounts that are None are not given."""
        given = {kind: amount for kind, amount in amounts.items() if amount is not None}
        if len(given) != 1:
            raise _not_one(list(amounts), list(given))
        ((kind, amount),) = given.items()
        return cls(kind, amount, round_to, dict(thresholds or {}))  # type: ignore[arg-type]


def _not_one(known: list[str], given: list[str]) -> InvalidInput:
    """Return the error for no target, or for more than one."""
    got = _listed(given, " and ") if given else ["none"]
    return InvalidInput("exactly one of ", *_listed(known, ", "), " must be given, got ", *got)


def _listed(names: list[str], separator: str) -> list[str | Option]:
    parts: list[str | Option] = []
    for name in names:
        parts += [separator] if parts else []
        parts.append(Option(name))
    return parts
