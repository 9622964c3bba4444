"""`slimilar prune`: the main job."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli import options
from slimilar.cli.opened import Opened, folder_for, open_model, parse_layers
from slimilar.cli.output import Output, escape, less
from slimilar.cli.planning import Asked, Remembered, command_of, planned, show_frozen

if TYPE_CHECKING:
    from slimilar.deploy.latency import Found
    from slimilar.pipeline import Result
    from slimilar.planning.plan import Plan

MODEL, PLAN, REPORT = "model.safetensors", "plan.json", "report.html"


def prune(
    model: options.Model,
    threshold: options.Threshold = None,
    flops: options.Flops = None,
    macs: options.Macs = None,
    params: options.Params = None,
    latency: options.Latency = None,
    round_to: options.RoundTo = 1,
    layer: options.Layer = None,
    exclude: options.Exclude = None,
    calibrate: options.Calibrate = None,
    images: options.Images = None,
    normalise: options.Normalise = "auto",
    criterion: options.Criterion = "auto",
    trained: options.Trained = False,
    substitute: options.Substitute = "auto",
    residual: options.Residual = "inner",
    linkage: options.Linkage = "average",
    min_channels: options.MinChannels = 1,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    seed: options.Seed = 0,
    out: options.Out = Path("pruned"),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prune a model by a threshold or to a budget; write the smaller model, the plan and a report.

    Example: [bold]slimilar prune slimilar:demo --flops 0.5 -o small[/]
    """
    output, folder = Output(json, quiet), folder_for(out)
    wanted: dict[str, Any] = {"threshold": threshold, "flops": flops, "macs": macs, "params": params}
    check_one({**wanted, "latency": latency})
    cut_options = {"round_to": round_to, "thresholds": parse_layers(layer)}
    asked = Asked(
        residual, linkage, tuple(exclude or ()), min_channels, criterion, calibrate, substitute, seed, trained
    )
    opened = open_model(model, weights, input, base)
    asked, shown, plan = planned(output, opened, asked, images, normalise, threshold)
    found = None
    if latency is not None:
        found = _within(output, opened, plan, latency, cut_options)
        wanted = {"threshold": found.cut.threshold}
    result = pruned(output, opened, plan, asked, shown, **wanted, **cut_options)
    written = _write(output, folder, opened, asked, result)
    _show(output, result, found)
    for what, path in written.items():
        output.say(f"{what:<8} [bold]{escape(path)}[/]")
    output.answer(_described(opened, result, found, written))


def check_one(wanted: dict[str, Any]) -> None:
    """Refuse all but exactly one of the ways to say how much shall go; before anything takes time."""
    from slimilar.errors import InvalidInput

    given = [f"--{name}" for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        ways = ", ".join(f"--{name}" for name in wanted)
        raise InvalidInput(f"exactly one of {ways} must be given, got {' and '.join(given) or 'none'}")


def pruned(out: Output, opened: Opened, plan: Plan, asked: Asked, calibration: Any, **cut: Any) -> Result:
    """Return the smaller model at a cut of a plan."""
    import slimilar

    with out.working("Building the smaller model") as tell:
        return slimilar.prune(
            opened.model, opened.example(), criterion=Remembered(plan), calibration=calibration,
            substitute=asked.substitute, progress=tell.stage, **cut, **asked.options(),
        )  # fmt: skip


def _within(out: Output, opened: Opened, plan: Plan, budget: str, options: dict[str, Any]) -> Found:
    """Return the cut that meets a budget of time."""
    from slimilar.deploy.latency import within

    with out.working("Measuring how fast smaller models run") as tell:
        return within(opened.model, opened.example(), plan, budget, progress=tell, **options)


def _write(out: Output, folder: Path, opened: Opened, asked: Asked, result: Result) -> dict[str, Path]:
    """Write the three files, each whole or not at all."""
    from slimilar.deploy.store import save
    from slimilar.report import write_report
    from slimilar.utils.atomic import write_text

    with out.working("Writing"):
        text = jsonlib.dumps(_plan(result), indent=1) + "\n"
        written = {"model": save(result, folder / MODEL, source=opened.source)}
        written["plan"] = write_text(folder / PLAN, text)
        written["report"] = write_report(
            folder / REPORT, result.plan, model=opened.model, title=opened.title,
            source=command_of(opened, asked), cut=result.cut,
        )  # fmt: skip
    return written


def _plan(result: Result) -> dict[str, Any]:
    """Return what was decided, for programs and for curious people."""
    cut = result.cut
    return {
        "threshold": cut.threshold,
        "criterion": result.plan.criterion,
        "substitute": result.substitute,
        "cost": {"before": _cost(cut.before), "after": _cost(cut.cost)},
        "layers": {
            group.name: {
                "before": group.width,
                "after": cut.widths[group.name],
                "kept": list(cut.kept[group.name]),
                "clusters": [
                    [int(c.representative), [int(m) for m in c.members]] for c in cut.clusters[group.name]
                ],
            }
            for group in result.plan.groups
        },
        "frozen": [{"name": f.name, "channels": f.width, "reason": f.reason} for f in result.plan.frozen],
    }


def _cost(cost: Any) -> dict[str, int]:
    return {"flops": cost.flops, "macs": cost.macs, "params": cost.params}


def _show(out: Output, result: Result, found: Found | None) -> None:
    from slimilar.planning.cost import human

    cut = result.cut
    rows = [
        [escape(g.name), str(g.width), str(cut.widths[g.name]), less(g.width, cut.widths[g.name])]
        for g in result.plan.groups
    ]
    out.table(["<layer", "channels", "kept", ""], rows)
    show_frozen(out, result.plan)
    totals = [
        [name, human(a), human(b), less(a, b)]
        for name, a, b in (
            ("FLOPs", cut.before.flops, cut.flops),
            ("MACs", cut.before.macs, cut.macs),
            ("parameters", cut.before.params, cut.params),
        )
    ]
    if found is not None:
        times = [f"{found.before.value:.3g} ms", f"{found.after.value:.3g} ms"]
        totals.append(["measured time", *times, less(1.0, found.ratio.value)])
    out.table(["<", "before", "after", ""], totals)
    out.say(f"by {result.plan.criterion}, threshold {cut.threshold:.4g}; substitute: {result.substitute}\n")


def _described(
    opened: Opened, result: Result, found: Found | None, written: dict[str, Path]
) -> dict[str, Any]:
    measured = {} if found is None else {"latency": _times(found)}
    return {
        "model": opened.source,
        **_plan(result),
        **measured,
        "error": result.error,
        "files": {name: str(path) for name, path in written.items()},
    }


def _times(found: Found) -> dict[str, dict[str, float]]:
    return {
        name: {"value": i.value, "low": i.low, "high": i.high}
        for name, i in (("before_ms", found.before), ("after_ms", found.after), ("ratio", found.ratio))
    }
