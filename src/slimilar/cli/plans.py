"""From the options that several commands share to a plan."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli.images import calibration
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, escape
from slimilar.errors import InvalidInput
from slimilar.utils.wording import listed

if TYPE_CHECKING:
    from slimilar.planning.plan import Plan
    from slimilar.planning.target import TargetKind


@dataclass(frozen=True)
class PlanOptions:
    """The options that decide on a plan and on the reconstruction, as they were typed."""

    residual: str = "inner"
    linkage: str = "average"
    exclude: tuple[str, ...] = ()
    min_channels: int = 1
    criterion: str = "similarity"
    calibrate: str | None = None
    images: int | None = None
    normalise: str = "auto"
    reconstruction: str = "auto"
    seed: int = 0
    trained: bool = False

    def settled(self, images: Any, target: TargetKind | None = None) -> PlanOptions:
        """Return them with what criterion "auto" stands for, given the images that were read."""
        if self.criterion != "auto":
            return self
        from slimilar.criteria import automatic

        return replace(self, criterion=automatic(0 if images is None else len(images), target))

    def words(self) -> str:
        """Return them as on a command line, without those that have their default."""
        found = []
        for option in (
            "residual", "linkage", "min_channels", "criterion", "calibrate", "images", "normalise",
            "reconstruction", "seed",
        ):  # fmt: skip
            value = getattr(self, option)
            if value != getattr(PlanOptions, option):
                found.append(f"--{option.replace('_', '-')} {shlex.quote(str(value))}")
        found += ["--trained"] * self.trained
        found += [f"--exclude {shlex.quote(name)}" for name in self.exclude]
        return " ".join(found)


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan, the options behind it with "auto" settled, and the images that were read for it."""

    plan: Plan
    options: PlanOptions
    images: Any = None


def planned(
    out: Output, opened: OpenedModel, options: PlanOptions, target: TargetKind | None = None
) -> Planned:
    """Return the plan of a model, for which images are read or synthesised where options ask for them."""
    images = _calibration(out, opened, options)
    settled = options.settled(images, target)
    return Planned(make_plan(out, opened, settled, images), settled, images)


def _calibration(out: Output, opened: OpenedModel, options: PlanOptions) -> Any:
    """Return images, read or synthesised, or None where none are asked for; with labels where they are needed."""
    from slimilar.criteria import facts

    criterion = options.settled(None).criterion  # both criteria of "auto" can do without
    _check_needs(criterion, opened, options)
    with out.working("Reading images") as tell:
        labels = facts(criterion).needs == "labels"
        found = calibration(opened, options.calibrate, options.images or 512, options.normalise, labels)
        if not isinstance(found, str):
            return found
        from slimilar.calibration.synthesis import synthesize

        made = {} if options.images is None else {"count": options.images}
        return synthesize(opened.model, opened.example(), seed=options.seed, progress=tell.stage, **made)


def _check_needs(criterion: str, opened: OpenedModel, options: PlanOptions) -> None:
    """Raise unless the command has what its criterion needs; before anything takes time."""
    from slimilar.criteria import available, facts
    from slimilar.criteria.base import phases_of
    from slimilar.criteria.needs import Given, check_needs

    if options.trained and facts(criterion).needs != "training":
        known = ", ".join(name for name in available() if facts(name).needs == "training")
        raise InvalidInput(
            f"--trained is for criteria with a training phase ({known}), got --criterion {criterion}; leave it out"
        )
    given = Given(
        images=options.calibrate is not None,
        labels=options.calibrate not in (None, "synthesize"),
        trained=options.trained or criterion in phases_of(opened.model),
    )
    check_needs(criterion, facts(criterion), given)


def make_plan(out: Output, opened: OpenedModel, options: PlanOptions, images: Any = None) -> Plan:
    """Return the plan of a model; raise with a hint where there is nothing to prune."""
    import slimilar
    from slimilar.criteria import make
    from slimilar.planning.assemble import nothing_to_prune

    criterion: Any = make(options.criterion, trained=True) if options.trained else options.criterion
    residual, linkage = (
        options.residual,
        options.linkage,
    )
    with out.working("Tracing the channels through the model") as tell:
        plan = slimilar.analyze(
            opened.model, opened.example(), criterion=criterion, calibration=images, linkage=linkage,  # type: ignore[arg-type]
            residual=residual, exclude=options.exclude, min_channels=options.min_channels,  # type: ignore[arg-type]
            seed=options.seed, progress=tell.stage,
        )  # fmt: skip
    if not plan.groups:
        raise nothing_to_prune(plan.frozen)
    return plan


def command_of(opened: OpenedModel, options: PlanOptions) -> str:
    """Return what follows `slimilar prune` to get the same plan again."""
    return " ".join(filter(None, [opened.command, options.words()]))


def show_frozen(out: Output, plan: Plan) -> None:
    """Show what has to stay, by reason."""
    reasons: dict[str, list[str]] = {}
    for frozen in plan.frozen:
        reasons.setdefault(frozen.reason, []).append(f"{frozen.name} ({frozen.width})")
    if reasons:
        rows = [[escape(reason), escape(listed(names, most=7))] for reason, names in reasons.items()]
        out.table(["<has to stay, because", "<layers (channels)"], rows)


def write_page(out: Output, file: Path, opened: OpenedModel, found: Planned) -> Path:
    """Write the explorer's page."""
    from slimilar.report import write_report

    with out.working("Writing the page"):
        page = write_report(
            file, found.plan, model=opened.model, title=opened.title, source=command_of(opened, found.options)
        )
    out.say(f"The explorer is in [bold]{escape(page)}[/]")
    return page
