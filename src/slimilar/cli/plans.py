"""From the options that several commands share to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli.images import ImageReader
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, escape
from slimilar.cli.plan_options import PlanOptions
from slimilar.errors import InvalidInput
from slimilar.utils.wording import listed

if TYPE_CHECKING:
    from slimilar.data import Preprocessing
    from slimilar.planning.plan import Plan
    from slimilar.planning.target import PruningTarget, TargetKind


ENOUGH = 16  # images for criterion "auto", as in slimilar.criteria


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan, the options behind it with "auto" settled, and the images that were read for it."""

    plan: Plan
    options: PlanOptions
    images: Any = None
    preprocessing: Preprocessing | None = None  # of these images, or known of the model
    reconstruction: str = "auto"
    scores: Mapping[str, float] = field(default_factory=dict)  # of the plans that "auto" has compared


def planned(
    out: Output, opened: OpenedModel, options: PlanOptions, target: TargetKind | None = None
) -> Planned:
    """Return the plan of a model, for which images are read or synthesised where options ask for them."""
    images, preprocessing = _calibration(out, opened, options)
    if options.criterion == "auto" and 0 < _count(images) < ENOUGH:
        out.note(
            f"{_count(images)} calibration images are too few for held-out measurements and are not used; pass "
            f"{ENOUGH} "
            "or more"
        )
        images = None
    settled = options.settled(_count(images), target)
    return Planned(make_plan(out, opened, settled, images), settled, images, preprocessing)


def compared(out: Output, opened: OpenedModel, found: Planned, target: PruningTarget) -> Planned:
    """Return the plan that does best on held-out images, as criterion "auto" decides in Python, and say which."""
    from slimilar.calibration.calibration_set import calibration_set
    from slimilar.pipeline.analysis import AnalysisOptions
    from slimilar.pipeline.automatic import decide

    options, example = found.options, opened.example()
    images = calibration_set(found.images, None, example, model=opened.model, seed=options.seed)
    asked = AnalysisOptions(
        linkage=options.linkage, residual=options.residual, exclude=options.exclude,  # type: ignore[arg-type]
        min_channels=options.min_channels,
    )  # fmt: skip
    with out.working("Comparing with simpler criteria") as tell:
        decision = decide(
            opened.model, example, asked, target, found.reconstruction, images, tell.stage, scanned=found.plan
        )
    for note in decision.notes:
        out.note(note)
    return replace(
        found,
        plan=decision.plan,
        options=replace(options, criterion=decision.plan.criterion),
        images=found.images if decision.images else None,
        scores=decision.scores,
    )


def _calibration(out: Output, opened: OpenedModel, options: PlanOptions) -> tuple[Any, Preprocessing | None]:
    """Return images, read or synthesised, or None where none are asked for; with labels where they are needed."""
    from slimilar.calibration.synthesis import synthesize
    from slimilar.criteria import facts

    criterion = options.settled(0).criterion  # both criteria of "auto" can do without
    _check_needs(criterion, opened, options)
    reader = ImageReader(out, opened, options.preprocessing)
    if options.calibrate is None:
        return None, reader.preprocessing()
    if options.calibrate == "synthesize":
        made = {} if options.images is None else {"count": options.images}
        with out.working("Synthesising images") as tell:
            images = synthesize(
                opened.model, opened.example(), seed=options.seed, progress=tell.stage, **made
            )
        return images, reader.preprocessing()
    labels = facts(criterion).needs == "labels"
    found = reader.calibration(options.calibrate, options.images or 512, labels)
    return found.as_argument(labels), found.preprocessing


def _count(images: Any) -> int:
    """Return the number of images, or of samples of a model with several inputs."""
    from slimilar.utils.pytree import tensors_in

    return next((len(tensor) for tensor in tensors_in(images)), 0)


def _check_needs(criterion: str, opened: OpenedModel, options: PlanOptions) -> None:
    """Raise unless the command has what its criterion needs; before anything takes time."""
    from slimilar.criteria import available, facts
    from slimilar.criteria.base import phases_of
    from slimilar.criteria.needs import Given, check_needs

    if options.trained and facts(criterion).needs != "training":
        known = ", ".join(name for name in available() if facts(name).needs == "training")
        raise InvalidInput(
            f"--trained only applies to criteria with a training phase ({known}), got --criterion {criterion}; "
            "leave it out"
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
    residual, linkage = options.residual, options.linkage
    with out.working("Tracing the model") as tell:
        plan = slimilar.analyze(
            opened.model, opened.example(), criterion=criterion, calibration=images, linkage=linkage,  # type: ignore[arg-type]
            residual=residual, exclude=options.exclude, min_channels=options.min_channels,  # type: ignore[arg-type]
            seed=options.seed, progress=tell.stage,
        )  # fmt: skip
    if not plan.groups:
        raise nothing_to_prune(plan.frozen)
    return plan


def command_of(opened: OpenedModel, found: Planned) -> str:
    """Return what follows `slimilar prune` to get the same plan again."""
    rest = "" if found.reconstruction == "auto" else f"--reconstruction {found.reconstruction}"
    return " ".join(filter(None, [opened.command, found.options.words(), rest]))


def show_frozen(out: Output, plan: Plan) -> None:
    """Show what has to stay, by reason."""
    reasons: dict[str, list[str]] = {}
    for frozen in plan.frozen:
        reasons.setdefault(frozen.reason, []).append(f"{frozen.name} ({frozen.width})")
    if reasons:
        rows = [[escape(reason), escape(listed(names, most=7))] for reason, names in reasons.items()]
        out.table(["<cannot be pruned because", "<layers (channels)"], rows)


def write_page(out: Output, file: Path, opened: OpenedModel, found: Planned) -> Path:
    """Write the explorer's page."""
    from slimilar.report import write_report

    with out.working("Writing the page"):
        page = write_report(
            file, found.plan, model=opened.model, title=opened.title, source=command_of(opened, found)
        )
    out.say(f"The explorer was written to [bold]{escape(page)}[/]")
    return page
