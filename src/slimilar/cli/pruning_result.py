"""What `slimilar prune` shows and writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli.destination import file_for, folder_for
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, escape, less, percent
from slimilar.cli.plans import Planned, command_of, show_frozen
from slimilar.cli.pruning_accuracy import MeasuredAccuracy
from slimilar.cli.recipe_file import PruningRecipe, words_of, write_recipe
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.planning.cut import Cut
    from slimilar.planning.latency import MeasuredLatency
    from slimilar.planning.plan import Plan
    from slimilar.planning.target import PruningTarget
    from slimilar.report import Latency
    from slimilar.result import Result

FILES = {"model": "model.safetensors", "plan": "plan.json", "report": "report.html", "recipe": "recipe.yaml"}


_ONE_FILE = (".onnx", ".safetensors")  # endings that name the model, not a folder


def model_in(out: Path) -> Path:
    """Return the file that holds the model, for what was given as --out."""
    return out if out.suffix in _ONE_FILE else out / FILES["model"]


def places_for(out: Path, onnx: bool, force: bool) -> dict[str, Path]:
    """Return the files to write: in a folder, or a model and those beside it; raise if they cannot be written."""
    if out.suffix in _ONE_FILE and not out.expanduser().is_dir():
        if onnx and out.suffix != ".onnx":
            raise InvalidInput(f"--out must end in .onnx, as the model does, or name a folder, got {out}")
        file = file_for(out, force=force)
        return {"model": file} | {
            what: file.with_suffix(f".{name}") for what, name in FILES.items() if what != "model"
        }
    names = FILES | ({"model": "model.onnx"} if onnx else {})
    folder = folder_for(out, names.values(), force)
    return {what: folder / name for what, name in names.items()}


def write(
    out: Output, places: dict[str, Path], opened: OpenedModel, found: Planned, result: Result,
    accuracy: MeasuredAccuracy, recipe: PruningRecipe, target: PruningTarget,
) -> dict[str, Path]:  # fmt: skip
    """Write the files, each whole or not at all."""
    from slimilar.deploy.onnx import export_onnx
    from slimilar.deploy.store import save
    from slimilar.report import write_report
    from slimilar.utils.atomic import write_text

    with out.working("Writing"):
        if places["model"].suffix == ".onnx":
            model = export_onnx(result.model, places["model"], opened.example()).path
        else:
            model = save(result, places["model"], source=opened.source, preprocessing=found.preprocessing)
        written = {"model": model}
        text = json.dumps({**_plan(result), **accuracy.described()}, indent=1) + "\n"
        written["plan"] = write_text(places["plan"], text)
        written["report"] = write_report(
            places["report"], result.plan, model=opened.model, title=opened.title,
            source=_source(opened, found, recipe, target), cut=result.cut, points=accuracy.points(result),
            latency=_latency(opened, result), target=target,
        )  # fmt: skip
        written["recipe"] = write_recipe(places["recipe"], recipe, model)
    return written


def _source(opened: OpenedModel, found: Planned, recipe: PruningRecipe, target: PruningTarget) -> str:
    """Return what precedes the target in the command: the model, the plan's options, where time is measured."""
    where = {name: value for name, value in recipe.options.items() if name in ("runtime", "threads", "batch")}
    measured = words_of(PruningRecipe("", where))[1:] if target.kind == "latency" else []
    return " ".join([command_of(opened, found), *measured])


def _latency(opened: OpenedModel, result: Result) -> Latency | None:
    """Return the measured times for the report, if there are any."""
    from slimilar.report import Latency
    from slimilar.utils.devices import device_name
    from slimilar.utils.modules import device_of

    if result.latency is None:
        return None
    before, after = result.latency.before.value, result.latency.after.value
    curve = [(result.cut.before.flops, before), (result.cut.flops, after)]
    return Latency(before, after, device_name(device_of(opened.model)), curve)


def show_cut(out: Output, plan: Plan, cut: Cut, more: list[list[str]] | None = None) -> None:
    """Show the widths of all layers, what has to stay, and the costs."""
    from slimilar.planning.cost import human

    rows = [
        [escape(g.name), str(g.width), str(cut.widths[g.name]), less(g.width, cut.widths[g.name])]
        for g in plan.groups
    ]
    out.table(["<layer", "channels", "kept", ""], rows)
    show_frozen(out, plan)
    totals = [
        [name, human(a), human(b), less(a, b)]
        for name, a, b in (
            ("FLOPs", cut.before.flops, cut.flops),
            ("MACs", cut.before.macs, cut.macs),
            ("parameters", cut.before.params, cut.params),
        )
    ]
    out.table(["<", "before", "after", ""], [*totals, *(more or [])])


def show_result(out: Output, result: Result, target: PruningTarget, accuracy: MeasuredAccuracy) -> None:
    """Show what was done, and what it changed."""
    from slimilar.reconstruction.methods import in_words

    more = []
    if result.latency is not None:
        times = [f"{time.value:.3g} ms" for time in (result.latency.before, result.latency.after)]
        more.append(["measured time", *times, less(1.0, result.latency.ratio.value)])
    if accuracy.before is not None and accuracy.after is not None:
        change = f"{100 * (accuracy.after - accuracy.before):+.1f} points"
        more.append(["accuracy", percent(accuracy.before), percent(accuracy.after), change])
    if accuracy.before is not None and accuracy.finetuned is not None:
        change = f"{100 * (accuracy.finetuned - accuracy.before):+.1f} points"
        more.append(["after fine-tuning", "", percent(accuracy.finetuned), change])
    show_cut(out, result.plan, result.cut, more)
    if result.latency is not None:
        out.say(f"time measured with {result.latency.where}")
    reached = "ratio" if target.kind == "ratio" else "threshold"
    amount = f", {reached} {result.cut.threshold:.4g}" if result.cut.by_threshold else ""
    chosen = f"criterion {result.plan.criterion}{amount}"
    rounded = _rounded(result)
    rounded += f" (rounding keeps {result.cut.held} more channels)" if result.cut.held else ""
    out.say(f"{chosen}{rounded}, reconstruction {in_words(result.reconstruction, result.fitted)}\n")
    if result.plan.note:
        out.say(f"{result.plan.note}\n")


def _rounded(result: Result) -> str:
    """Return what the widths are multiples of; narrow layers may take less."""
    multiple, widths = result.cut.round_to, result.cut.widths
    if multiple == 1:
        return ""
    narrow = any(widths[g.name] % multiple for g in result.plan.groups if widths[g.name] < g.width)
    return f", widths in multiples of {multiple}{', less in narrow layers' * narrow}"


def is_classifier(plan: Plan) -> bool:
    """Whether the network returns nothing but scores of classes, which `evaluate` and `finetune` take."""
    trace = plan.structure.trace
    shapes = [trace.values[value].shape for value in trace.outputs]
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] > 1


def next_commands(opened: OpenedModel, file: Path, data: str | None, scores: bool) -> list[str]:
    """Return commands that go on with the saved file; `scores`: it is a classifier."""
    saved = shlex.quote(str(file))
    base = f" --base {shlex.quote(opened.base)}" if opened.base else ""
    images = f" --data {shlex.quote(data)}" if data else " --data FOLDER"
    evaluate = [f"slimilar evaluate {saved}{base}{images}"] if scores else []
    if file.suffix == ".onnx":
        return [*evaluate, f"slimilar bench {opened.command} {saved}"]
    finetune = [f"slimilar finetune {saved}{base}{images} --epochs 3 -o finetuned"] if scores else []
    return [
        *evaluate,
        f"slimilar bench {opened.command} {saved}{base if '--base' not in opened.command else ''}",
        *finetune,
        f"slimilar export {saved}{base} -o {shlex.quote(_exported(file))}",
    ]


def _exported(file: Path) -> str:
    """Return a name for an ONNX file: that of the folder of results, or of the model."""
    name = file.parent.absolute().name if file.name == FILES["model"] else file.stem
    return f"{name or 'small'}.onnx"


def described(
    opened: OpenedModel, result: Result, written: dict[str, Path], accuracy: MeasuredAccuracy
) -> dict[str, Any]:
    """Return a result for programs."""
    measured = {} if result.latency is None else {"latency": _times(result.latency)}
    return {
        "model": opened.source,
        **_plan(result),
        **measured,
        **accuracy.described(),
        "error": result.error,
        "files": {name: str(path) for name, path in written.items()},
    }


def _plan(result: Result) -> dict[str, Any]:
    """Return what was decided, as JSON."""
    cut = result.cut
    return {
        "threshold": cut.threshold,
        "criterion": result.plan.criterion,
        **({"note": result.plan.note} if result.plan.note else {}),
        **({"scores": dict(result.scores)} if result.scores else {}),
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


def _times(latency: MeasuredLatency) -> dict[str, dict[str, float]]:
    return {
        name: {"value": i.value, "low": i.low, "high": i.high}
        for name, i in (("before_ms", latency.before), ("after_ms", latency.after), ("ratio", latency.ratio))
    }
