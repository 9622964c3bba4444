"""What several commands ask of a plan, and the plan that answers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slimilar.cli.images import calibration
from slimilar.cli.needs import check_needs, wants_labels
from slimilar.cli.opened import Opened
from slimilar.cli.output import Output, escape

if TYPE_CHECKING:
    from slimilar.criteria import Weights
    from slimilar.graph.groups import ChannelGroup
    from slimilar.planning.plan import Plan
    from slimilar.similarity.removal_order import RemovalOrder


@dataclass(frozen=True)
class Asked:
    """The options that decide on a plan."""

    residual: str = "inner"
    linkage: str = "average"
    exclude: tuple[str, ...] = ()
    min_channels: int = 1
    criterion: str = "similarity"
    calibrate: str | None = None
    substitute: str = "auto"
    seed: int = 0
    trained: bool = False

    def settled(self, calibration: Any, threshold: float | None = None) -> Asked:
        """Return them with what "auto" stands for, given the images that were read."""
        if self.criterion != "auto":
            return self
        from slimilar.criteria import automatic

        count = 0 if calibration is None else len(calibration)
        return replace(self, criterion=automatic(count, threshold))

    def words(self) -> str:
        """Return them as on a command line, without those that are as usual."""
        found = []
        for option in ("residual", "linkage", "min_channels", "criterion", "calibrate", "substitute", "seed"):
            value = getattr(self, option)
            if value != getattr(Asked, option):
                found.append(f"--{option.replace('_', '-')} {shlex.quote(str(value))}")
        found += ["--trained"] * self.trained
        found += [f"--exclude {shlex.quote(name)}" for name in self.exclude]
        return " ".join(found)

    def options(self) -> dict[str, Any]:
        """Return them as both `slimilar.analyze` and `slimilar.pipeline` take them."""
        return {
            "residual": self.residual,
            "linkage": self.linkage,
            "exclude": self.exclude,
            "min_channels": self.min_channels,
            "seed": self.seed,
        }


@dataclass(frozen=True, eq=False)
class Remembered:
    """A criterion that answers as it did for a plan: so that one look at the images serves several cuts."""

    plan: Plan

    @property
    def name(self) -> str:
        """The name of the criterion that gave the answers."""
        return self.plan.criterion

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the answers again."""
        found: dict[str, RemovalOrder | str] = {f.name: f.reason for f in self.plan.frozen}
        found |= {g.name: order for g, order in zip(self.plan.groups, self.plan.orders, strict=True)}
        return [found[group.name] for group in groups]


def command_of(opened: Opened, asked: Asked) -> str:
    """Return what follows `slimilar prune` to get the same plan again."""
    return " ".join(filter(None, [opened.command, asked.words()]))


def _calibrated(out: Output, opened: Opened, asked: Asked, count: int | None, normalise: str) -> Any:
    """Return images, read or synthesised, or None where none are asked for; with labels where they are needed."""
    criterion = asked.settled(None).criterion  # what "auto" may come to needs nothing
    check_needs(criterion, asked.calibrate, asked.trained, opened.model)
    with out.working("Reading images") as tell:
        labels = wants_labels(criterion)
        found = calibration(opened, asked.calibrate, count or 512, normalise, labels)
        if not isinstance(found, str):
            return found
        from slimilar.calibration.synthesis import synthesize

        made = {} if count is None else {"count": count}
        return synthesize(opened.model, opened.example(), seed=asked.seed, progress=tell.stage, **made)


def planned(
    out: Output,
    opened: Opened,
    asked: Asked,
    count: int | None,
    normalise: str,
    threshold: float | None = None,
) -> tuple[Asked, Any, Plan]:
    """Return what was asked with "auto" settled, the images that were looked at, and the plan."""
    shown = _calibrated(out, opened, asked, count, normalise)
    settled = asked.settled(shown, threshold)
    return settled, shown, make_plan(out, opened, settled, shown)


def make_plan(out: Output, opened: Opened, asked: Asked, calibration: Any = None) -> Plan:
    """Return the plan of a model; raise with a hint where there is nothing to prune."""
    import slimilar
    from slimilar.criteria import make
    from slimilar.errors import NothingToPrune
    from slimilar.planning.plan import nothing

    criterion: Any = make(asked.criterion, trained=True) if asked.trained else asked.criterion
    with out.working("Following the channels through the model") as tell:
        plan = slimilar.analyze(
            opened.model, opened.example(), criterion=criterion, calibration=calibration,
            progress=tell.stage, **asked.options(),
        )  # fmt: skip
    if not plan.groups:
        error = nothing(plan.frozen)
        if any("untrained" in frozen.reason for frozen in plan.frozen):
            raise NothingToPrune(
                f"{error}. Does the model lack its trained weights? Pass --weights FILE"
            ) from error
        raise error
    return plan


def show_frozen(out: Output, plan: Plan) -> None:
    """Say what has to stay, by reason."""
    reasons: dict[str, list[str]] = {}
    for frozen in plan.frozen:
        reasons.setdefault(frozen.reason, []).append(f"{frozen.name} ({frozen.width})")
    if reasons:
        rows = [[escape(reason), escape(_listed(names))] for reason, names in reasons.items()]
        out.table(["<has to stay, because", "<layers (channels)"], rows)


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
