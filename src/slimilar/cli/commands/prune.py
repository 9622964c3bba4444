"""`slimilar prune`: from a model to a smaller one, with its plan, a report and the recipe to do it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.budget_checks import check_budget_size, check_budget_unit
from slimilar.cli.images import ImageReader
from slimilar.cli.known_names import RECONSTRUCTIONS, check_one_of
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, escape
from slimilar.cli.plan_options import PlanOptions, Reconstruction
from slimilar.cli.plans import Planned, compared, planned
from slimilar.cli.pruning_accuracy import Accuracy, AccuracyOptions, MeasuredAccuracy
from slimilar.cli.pruning_result import (
    described,
    is_classifier,
    next_commands,
    places_for,
    show_cut,
    show_result,
    write,
)
from slimilar.cli.recipe_file import recipe_of
from slimilar.cli.target_options import TargetOptions
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.deploy.runtimes import Runtime
    from slimilar.planning.target import PruningTarget
    from slimilar.result import Result


@dataclass(frozen=True)
class WritingOptions:
    """Where to write, if at all."""

    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the results; or a .safetensors or .onnx file for the model, with the other files next "
            "to it.",
            metavar="PATH",
        ),
    ] = Path("pruned")
    force: options.Force = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; write nothing.")] = (
        False
    )

    def places(self, model: str) -> dict[str, Path]:
        """Return the files to write; raise if they cannot be written, or if one is the model itself."""
        original = Path(model).expanduser()
        if original.is_file() and self.out.expanduser().resolve() == original.resolve():
            raise InvalidInput(f"--out must not be the model itself, got {self.out}; choose another name")
        return places_for(self.out, original.suffix == ".onnx", self.force or self.dry_run)


def prune(
    context: typer.Context,
    model: options.Model,
    *,
    writing: WritingOptions,
    goal: TargetOptions,
    plan: PlanOptions = PlanOptions(criterion="auto"),
    reconstruction: Reconstruction = "auto",
    source: ModelOptions,
    place: Placement,
    scoring: AccuracyOptions,
    output: Output,
) -> None:
    """Prune a model to a threshold or a budget. Write the smaller model, the plan, a report and the recipe.

    Example: [bold]slimilar prune slimilar:demo --flops 0.5 -o small[/]
    """
    check_one_of("reconstruction", reconstruction, RECONSTRUCTIONS)
    source.check(model)
    plan.check(model, source.base)
    target = goal.target()
    check_budget_unit(target)
    scoring.check()
    _check_dry_run(target, writing)
    places = writing.places(model)
    opened = place.of(source.open(model))
    accuracy = Accuracy.of(ImageReader(output, opened, plan.preprocessing), scoring)
    found = replace(planned(output, opened, plan, target.kind), reconstruction=reconstruction)
    check_budget_size(target, found.plan.before)
    if plan.criterion == "auto" and found.images is not None:
        found = compared(output, opened, found, target)
    if writing.dry_run:
        show_cut(output, found.plan, found.plan.cut(target))
        output.say("[bold]Nothing was written[/]: leave out --dry-run to prune.")
        return output.answer({"cut": dict(found.plan.cut(target).widths)})
    result = pruned(output, opened, found, target, goal.where())
    measured = MeasuredAccuracy()
    if accuracy is not None:
        calibrated = found.images is not None
        result, measured = accuracy.measured(output, result, scoring.finetune, calibrated, plan.seed)
    written = write(output, places, opened, found, result, measured, recipe_of(context), target)
    show_result(output, result, target, measured)
    for what, path in written.items():
        output.say(f"{what:<8} [bold]{escape(path)}[/]")
    output.next(*next_commands(opened, written["model"], scoring.data, is_classifier(result.plan)))
    output.answer(described(opened, result, written, measured))
    return None


def _check_dry_run(target: PruningTarget, writing: WritingOptions) -> None:
    if writing.dry_run and target.kind == "latency":
        raise InvalidInput(
            "--dry-run cannot be combined with --latency, which measures pruned models; leave one out"
        )


def pruned(
    out: Output,
    opened: OpenedModel,
    found: Planned,
    target: PruningTarget,
    runtime: str | Runtime = "pytorch",
) -> Result:
    """Return the smaller model of a plan at a target."""
    import slimilar

    with out.working("Building the smaller model") as tell:
        result = slimilar.apply(
            opened.model, opened.example(), found.plan, target, reconstruction=found.reconstruction,
            calibration=found.images, runtime=runtime, seed=found.options.seed, progress=tell.stage,
        )  # fmt: skip
    return replace(result, scores=found.scores)
