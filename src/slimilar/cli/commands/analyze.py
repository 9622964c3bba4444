"""`slimilar analyze`: what can be pruned, and what every cut costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.destination import file_for
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, console, escape, less, plot
from slimilar.cli.plan_options import PlanOptions
from slimilar.cli.plans import command_of, planned, show_frozen, write_page

if TYPE_CHECKING:
    from slimilar.planning.cut import Cut
    from slimilar.planning.plan import Plan

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


def analyze(
    model: options.Model,
    *,
    source: ModelOptions,
    place: Placement,
    plan: PlanOptions,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write the interactive page.", metavar="FILE")
    ] = None,
    out: Output,
) -> None:
    """Show which channels can be pruned, which cannot and why, and the cost of every cut.

    Example: [bold]slimilar analyze slimilar:demo[/]
    """
    if report is not None:
        file_for(report, "--report")
    plan.check(model, source.base)
    opened = place.of(source.open(model))
    found = planned(out, opened, plan)
    cuts = reachable(found.plan)
    out.say(f"[bold]{escape(opened.title)}[/]  {found.plan.before}")
    _show_layers(out, found.plan, cuts)
    show_frozen(out, found.plan)
    _show_curve(out, found.plan, cuts)
    if report is not None:
        write_page(out, report, opened, found)
    out.next(f"slimilar prune {command_of(opened, found)} --flops 0.5")
    out.answer(described(opened, found.plan))


def reachable(plan: Plan) -> list[Cut]:
    """Return the cuts at round shares of the FLOPs, as far as the plan goes."""
    smallest = plan.at(1.0, round_to=1)
    shares = [share for share in SHARES if share * plan.before.flops >= smallest.flops]
    return [*(plan.at(flops=share, round_to=1) for share in shares), smallest]


def _show_layers(out: Output, plan: Plan, cuts: list[Cut]) -> None:
    chosen = [cuts[i] for i in sorted({len(cuts) // 4, len(cuts) // 2, 3 * len(cuts) // 4})]
    headings = ["<layer", "channels", *(less(plan.before.flops, cut.flops) for cut in chosen)]
    rows = [
        [escape(group.name), str(group.width), *(str(cut.widths[group.name]) for cut in chosen)]
        for group in plan.groups
    ]
    out.table(headings, rows, "Channels kept, by FLOPs saved, before rounding of widths")


def _show_curve(out: Output, plan: Plan, cuts: list[Cut]) -> None:
    from slimilar.planning.cost import human

    before = plan.before
    rows = [
        [f"{cut.threshold:.4f}", human(cut.flops), less(before.flops, cut.flops), human(cut.params),
         less(before.params, cut.params)]
        for cut in cuts
    ]  # fmt: skip
    out.table(["threshold", "FLOPs", "", "parameters", ""], rows, "Cost by threshold")
    curve = plan.curve()
    points = [(float(t), f / max(1, before.flops)) for t, f in zip(curve.threshold, curve.flops, strict=True)]
    out.say("[bold]FLOPs left, by threshold[/]")
    width = min(60, console().width - 8)  # beside the curve stand its ticks
    for line in plot([*points, (1.0, points[-1][1])], width):
        out.say(escape(line))


def described(opened: OpenedModel, plan: Plan) -> dict[str, Any]:
    """Return a plan for programs."""
    curve = plan.curve()
    return {
        "model": opened.source,
        "input": [list(shape) for shape in opened.shapes],
        "criterion": plan.criterion,
        "cost": {"flops": plan.before.flops, "macs": plan.before.macs, "params": plan.before.params},
        "groups": [
            {
                "name": g.name,
                "channels": g.width,
                "batch_norms": [norm.module for norm in g.batch_norms],
                "consumers": [consumer.module for consumer in g.consumers],
                "residual": g.residual,
            }
            for g in plan.groups
        ],
        "frozen": [{"name": f.name, "channels": f.width, "reason": f.reason} for f in plan.frozen],
        "curve": {name: getattr(curve, name).tolist() for name in ("threshold", "flops", "macs", "params")},
    }
