"""`slimilar prune`: from a model to a smaller one, with its plan and a report."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli import options
from slimilar.cli.model_source import OpenedModel, folder_for, open_model, parse_layers
from slimilar.cli.output import Output, escape, less
from slimilar.cli.plans import Planned, PlanOptions, command_of, planned, show_frozen
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.planning.latency import MeasuredLatency
    from slimilar.planning.target import PruningTarget
    from slimilar.result import Result

MODEL, MODEL_ONNX, PLAN, REPORT = "model.safetensors", "model.onnx", "plan.json", "report.html"


@dataclass(frozen=True)
class Places:
    """Where the three files go."""

    model: Path
    plan: Path
    report: Path

    @classmethod
    def of(cls, out: Path, onnx: bool) -> Places:
        """Return a folder's files, or an ONNX file and those beside it; raise at once if they cannot be written."""
        if out.suffix == ".onnx":
            file = out.expanduser()
            if file.is_dir():
                raise InvalidInput(f"--out must be a file, but {file} is a folder; choose another name")
            return cls(file, file.with_suffix(".plan.json"), file.with_suffix(".report.html"))
        folder = folder_for(out)
        return cls(folder / (MODEL_ONNX if onnx else MODEL), folder / PLAN, folder / REPORT)


def prune(
    model: options.Model,
    threshold: options.Threshold = None,
    flops: options.Flops = None,
    macs: options.Macs = None,
    params: options.Params = None,
    latency: options.Latency = None,
    ratio: options.Ratio = None,
    quantile: options.Quantile = None,
    round_to: options.RoundTo = 1,
    layer: options.Layer = None,
    exclude: options.Exclude = None,
    calibrate: options.Calibrate = None,
    images: options.Images = None,
    normalise: options.Normalise = "auto",
    criterion: options.Criterion = "auto",
    trained: options.Trained = False,
    reconstruction: options.Reconstruction = "auto",
    residual: options.Residual = "inner",
    linkage: options.Linkage = "average",
    min_channels: options.MinChannels = 1,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    runtime: options.Runtime = "pytorch",
    seed: options.Seed = 0,
    out: options.Out = Path("pruned"),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prune a model to a threshold or a budget; write the smaller model, the plan and a report.

    Example: [bold]slimilar prune slimilar:demo --flops 0.5 -o small[/]
    """
    from slimilar.deploy.runtimes import check_engine
    from slimilar.planning.target import PruningTarget

    output, places = Output(json, quiet), Places.of(out, onnx=model.endswith(".onnx"))
    target = PruningTarget.of(
        threshold=threshold, flops=flops, macs=macs, params=params, latency=latency, ratio=ratio, quantile=quantile,
        round_to=round_to, thresholds=parse_layers(layer),
    )  # fmt: skip
    check_engine(runtime, "runtime")
    chosen = PlanOptions(
        residual, linkage, tuple(exclude or ()), min_channels, criterion, calibrate, images, normalise,
        reconstruction, seed, trained,
    )  # fmt: skip
    opened = open_model(model, weights, input, base)
    found = planned(output, opened, chosen, target.kind)
    result = pruned(output, opened, found, target, runtime)
    written = _write(output, places, opened, found.options, result)
    _show(output, result, target)
    for what, path in written.items():
        output.say(f"{what:<8} [bold]{escape(path)}[/]")
    output.answer(_described(opened, result, written))


def pruned(
    out: Output, opened: OpenedModel, found: Planned, target: PruningTarget, runtime: str = "pytorch"
) -> Result:
    """Return the smaller model of a plan at a target."""
    import slimilar

    with out.working("Building the smaller model") as tell:
        return slimilar.apply(
            opened.model, opened.example(), found.plan, target, reconstruction=found.options.reconstruction,
            calibration=found.images, runtime=runtime, seed=found.options.seed, progress=tell.stage,
        )  # fmt: skip


def _write(
    out: Output, places: Places, opened: OpenedModel, chosen: PlanOptions, result: Result
) -> dict[str, Path]:
    """Write the three files, each whole or not at all."""
    from slimilar.deploy.onnx import export_onnx
    from slimilar.deploy.store import save
    from slimilar.report import write_report
    from slimilar.utils.atomic import write_text

    with out.working("Writing"):
        text = jsonlib.dumps(_plan(result), indent=1) + "\n"
        if places.model.suffix == ".onnx":
            written = {"model": export_onnx(result.model, places.model, opened.example()).path}
        else:
            written = {"model": save(result, places.model, source=opened.source)}
        written["plan"] = write_text(places.plan, text)
        written["report"] = write_report(
            places.report, result.plan, model=opened.model, title=opened.title,
            source=command_of(opened, chosen), cut=result.cut,
        )  # fmt: skip
    return written


def _plan(result: Result) -> dict[str, Any]:
    """Return what was decided, as JSON."""
    cut = result.cut
    return {
        "threshold": cut.threshold,
        "criterion": result.plan.criterion,
        **({"note": result.plan.note} if result.plan.note else {}),
        "reconstruction": result.reconstruction,
        "substitute": result.reconstruction,  # its earlier name
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


def _show(out: Output, result: Result, target: PruningTarget) -> None:
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
    if result.latency is not None:
        times = [f"{time.value:.3g} ms" for time in (result.latency.before, result.latency.after)]
        totals.append(["measured time", *times, less(1.0, result.latency.ratio.value)])
    out.table(["<", "before", "after", ""], totals)
    reached = "ratio" if target.kind == "ratio" else "threshold"
    chosen = f"criterion {result.plan.criterion}, {reached} {cut.threshold:.4g}"
    out.say(f"{chosen}, reconstruction {result.reconstruction}\n")
    if result.plan.note:
        out.say(f"{result.plan.note}\n")


def _described(opened: OpenedModel, result: Result, written: dict[str, Path]) -> dict[str, Any]:
    measured = {} if result.latency is None else {"latency": _times(result.latency)}
    return {
        "model": opened.source,
        **_plan(result),
        **measured,
        "error": result.error,
        "files": {name: str(path) for name, path in written.items()},
    }


def _times(latency: MeasuredLatency) -> dict[str, dict[str, float]]:
    return {
        name: {"value": i.value, "low": i.low, "high": i.high}
        for name, i in (("before_ms", latency.before), ("after_ms", latency.after), ("ratio", latency.ratio))
    }
