"""`slimilar demo`: the whole idea on a real network and real images, offline, in about a minute."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.commands.prune import pruned
from slimilar.cli.confidence import wilson
from slimilar.cli.destination import folder_for
from slimilar.cli.model_options import Device
from slimilar.cli.model_source import OpenedModel, open_model
from slimilar.cli.output import Output, ProgressDisplay, bar, escape, less, percent
from slimilar.cli.plan_options import PlanOptions
from slimilar.cli.plans import Planned, make_plan
from slimilar.cli.pruning_result import FILES

if TYPE_CHECKING:
    from torch import Tensor

    from slimilar.data import Images
    from slimilar.deploy.latency import Timings
    from slimilar.planning.plan import Plan
    from slimilar.report import Latency
    from slimilar.result import Result

SOURCE = "slimilar:demo"
SHARES = (0.5, 0.3)
HALF = 0.5  # the one of them that is saved
CHOSEN_BY = "span"  # the criterion that looks at images
BATCH = 32  # images at once when time is measured
PLAIN, DATA_FREE, LEAST_SQUARES, SPAN = "plain removal", "data-free", "least squares", "span"
HOW = {
    PLAIN: "similar channels removed (no data)",
    DATA_FREE: "same, with data-free reconstruction",
    LEAST_SQUARES: "same, reconstructed on 256 images",
    SPAN: "chosen and reconstructed on 256 images",
}


@dataclass(frozen=True)
class DemoRow:
    """One setting and what was measured for it."""

    share: float
    how: str
    flops: int
    params: int
    accuracy: float


def demo(
    *,
    out: options.Out = Path("slimilar-demo"),
    seconds: Annotated[
        float, typer.Option(help="Duration of the latency measurement.", min=0, metavar="SECONDS")
    ] = 4.0,
    seed: options.Seed = 0,
    device: Device = "auto",
    output: Output,
) -> None:
    """Prune a trained CIFAR-10 network in four ways and measure its accuracy and speed. Offline, about a minute.

    Example: [bold]slimilar demo[/]
    """
    from slimilar.data import demo_images

    folder = folder_for(out)
    opened = open_model(SOURCE).placed(device)
    test, shown = demo_images("test"), demo_images("train").tensor()
    plan = make_plan(output, opened, PlanOptions())
    _introduce(output, plan, test)
    run = _Demo(output, opened, plan, test, shown, seed)
    accuracy = run.original()
    rows, models = run.settings()
    _show_accuracy(output, accuracy, len(test), rows)
    timings = _timed(output, opened, models, seconds, seed)
    _show_time(output, plan, rows, timings)
    written = _write(folder, opened, plan, accuracy, rows, models, timings)
    _close(output, written)
    output.answer(_described(plan, accuracy, len(test), rows, timings, written))


def _introduce(out: Output, plan: Plan, test: Images) -> None:
    from slimilar.planning.cost import human

    channels = sum(group.width for group in plan.groups)
    out.say("\n[bold]Slimilar[/]: channels that the remaining ones can replace are removed.\n")
    size = f"{human(plan.before.flops)} FLOPs, {human(plan.before.params)} parameters"
    out.say(f"A trained VGG-16 for CIFAR-10 at 3/8 of its usual width: {size}.")
    out.say(f"{channels:,} channels in {len(plan.groups)} layers can be removed. {_nearest(plan)}")
    out.say(
        f"Accuracy is measured on {len(test):,} test images that were used neither for training nor for pruning.\n"
    )


def _nearest(plan: Plan) -> str:
    """Name the two channels of the network that are most alike."""
    order, group = min(zip(plan.orders, plan.groups, strict=True), key=lambda pair: float(pair[0].heights[0]))
    return (
        f"The two most similar are channels {order.removed[0]} and {order.representative[0]} of {group.name}."
    )


@dataclass(frozen=True, eq=False)
class _Demo:
    """The settings, one after the other, behind one progress bar."""

    out: Output
    opened: OpenedModel
    plan: Plan
    test: Images
    shown: Tensor
    seed: int

    def original(self) -> float:
        """Return the accuracy before anything is pruned."""
        with self.out.working("Evaluating the original"):
            return self.score(self.opened.model)

    def score(self, model: Any) -> float:
        from slimilar.train import evaluate

        return evaluate(model, self.test).accuracy

    def settings(self) -> tuple[list[DemoRow], dict[float, Result]]:
        """Return a row for every setting, and the models that were fitted, by their share of FLOPs."""
        fitted = make_plan(
            self.out, self.opened, PlanOptions(criterion=CHOSEN_BY, seed=self.seed), self.shown
        )
        rows, models = [], {}
        with self.out.working("Pruning") as tell:
            for share in SHARES:
                for how in HOW:
                    result = self._pruned(share, how, fitted, tell)
                    rows.append(
                        DemoRow(share, how, result.cut.flops, result.cut.params, self.score(result.model))
                    )
                models[share] = result
        return rows, models

    def _pruned(self, share: float, how: str, fitted: Plan, tell: ProgressDisplay) -> Result:
        from slimilar.planning.target import PruningTarget

        done = SHARES.index(share) * len(HOW) + list(HOW).index(how)
        tell.stage(f"pruning to {share:.0%} of the FLOPs: {HOW[how]}", done, len(SHARES) * len(HOW))
        images = self.shown if how in (LEAST_SQUARES, SPAN) else None
        found = Planned(
            fitted if how == SPAN else self.plan,
            PlanOptions(seed=self.seed),
            images,
            reconstruction="none" if how == PLAIN else "linear",
        )
        return pruned(Output(quiet=True), self.opened, found, PruningTarget("flops", share))


def _show_accuracy(out: Output, accuracy: float, count: int, rows: list[DemoRow]) -> None:
    low, high = wilson(accuracy, count)
    lines = [["", "the original network", percent(accuracy), f"[green]{bar(accuracy)}[/]"]]
    for row in rows:
        colour = {PLAIN: "red", DATA_FREE: "dark_orange", LEAST_SQUARES: "yellow", SPAN: "green"}[row.how]
        first = f"-{1 - row.share:.0%}".replace("%", " %") if row.how == PLAIN else ""
        lines.append([first, HOW[row.how], percent(row.accuracy), f"[{colour}]{bar(row.accuracy)}[/]"])
    out.table(["FLOPs", "<method", "accuracy", "<"], lines, "Accuracy without any fine-tuning")
    reach = f"{50 * (high - low):.1f}"
    remark = "The first method is the paper's before fine-tuning. The 256 images have no labels."
    out.say(f"[dim]{remark}[/]")
    out.say(
        f"[dim]With {count:,} test images, the 95 % interval of the original's accuracy is ±{reach} points.[/]\n"
    )


def _timed(
    out: Output, opened: OpenedModel, models: dict[float, Result], seconds: float, seed: int
) -> Timings:
    from slimilar.deploy.latency import measure
    from slimilar.deploy.runtimes import pytorch

    example = opened.example(BATCH)
    runs = {"1.0": pytorch(opened.model, example)}
    runs |= {str(share): pytorch(result.model, example) for share, result in models.items()}
    with out.working("Measuring latency") as tell:
        return measure(runs, seconds=seconds, seed=seed, progress=tell)


def _show_time(out: Output, plan: Plan, rows: list[DemoRow], timings: Timings) -> None:
    from slimilar.planning.cost import human

    lines = []
    costs = {1.0: (plan.before.flops, plan.before.params)}
    costs |= {row.share: (row.flops, row.params) for row in rows if row.how == SPAN}
    for share, (flops, params) in costs.items():
        ms, ratio = timings.milliseconds(str(share)), timings.ratio(str(share), "1.0")
        times = [less(1, ratio.value), f"-{100 - 100 * ratio.high:.0f}..-{100 - 100 * ratio.low:.0f} %"]
        lines.append(
            [human(flops), less(plan.before.flops, flops) if share < 1 else "", human(params),
             less(plan.before.params, params) if share < 1 else "", f"{ms.value:.1f} ms",
             *(times if share < 1 else ["", ""])]
        )  # fmt: skip
    title = f"Cost and latency: batches of {BATCH} images on this machine"
    out.table(["FLOPs", "", "parameters", "", "time", "", "<95 %"], lines, title)


def _write(
    folder: Path, opened: OpenedModel, plan: Plan, accuracy: float, rows: list[DemoRow], models: dict[float, Result],
    timings: Timings,
) -> dict[str, Path]:  # fmt: skip
    from slimilar.deploy.store import save
    from slimilar.report import Point, write_report
    from slimilar.utils.devices import device_name
    from slimilar.utils.modules import device_of

    points = [Point("original", plan.before.flops, accuracy)]
    points += [Point(HOW[row.how], row.flops, row.accuracy) for row in rows]
    times = {1.0: plan.before.flops} | {row.share: row.flops for row in rows if row.how == SPAN}
    curve = [(flops, timings.milliseconds(str(share)).value) for share, flops in times.items()]
    device = f"batches of {BATCH} on {device_name(device_of(opened.model))}"
    cut = plan.at(flops=HALF)
    report = write_report(
        folder / FILES["report"], plan, model=opened.model, title="Slimilar demo: VGG-16 on CIFAR-10", source=SOURCE,
        cut=cut, points=points, rows=_table(plan, accuracy, rows, timings), latency=_between(curve, cut.flops, device),
    )  # fmt: skip
    return {"report": report, "model": save(models[HALF], folder / FILES["model"], source=SOURCE)}


def _between(curve: list[tuple[int, float]], flops: int, device: str) -> Latency:
    """Return the time of a cut that was not measured itself, between networks that were."""
    import numpy as np

    from slimilar.report import Latency

    known = sorted(curve)
    after = float(np.interp(flops, [f for f, _ in known], [ms for _, ms in known]))
    return Latency(curve[0][1], after, f"between measured networks, {device}", curve)


def _table(plan: Plan, accuracy: float, rows: list[DemoRow], timings: Timings) -> list[dict[str, str]]:
    """Return what was measured, for the report."""
    from slimilar.planning.cost import human

    original = DemoRow(1.0, "original", plan.before.flops, plan.before.params, accuracy)
    return [
        {
            "what is done": HOW.get(row.how, "the original network"),
            "FLOPs": human(row.flops),
            "saved": less(plan.before.flops, row.flops) if row.flops < plan.before.flops else "",
            "parameters": human(row.params),
            "accuracy": percent(row.accuracy),
            f"time for {BATCH} images": ""
            if row.how in (PLAIN, DATA_FREE, LEAST_SQUARES)
            else f"{timings.milliseconds(str(row.share)).value:.1f} ms",
        }
        for row in [original, *rows]
    ]


def _close(out: Output, written: dict[str, Path]) -> None:
    model = shlex.quote(str(written["model"]))
    out.say(f"The report, with every layer, cluster and threshold: [bold]{escape(written['report'])}[/]")
    out.say(f"The network with half the FLOPs: [bold]{escape(written['model'])}[/]")
    out.next(
        f"slimilar inspect {model}",
        f"slimilar export {model} -o small.onnx",
        "slimilar analyze torchvision:resnet50 --weights default",
    )


def _described(
    plan: Plan, accuracy: float, count: int, rows: list[DemoRow], timings: Timings, written: dict[str, Path]
) -> dict[str, Any]:
    times = {name: asdict(timings.milliseconds(name)) for name in timings.names}
    return {
        "images": count,
        "accuracy": accuracy,
        "flops": plan.before.flops,
        "params": plan.before.params,
        "settings": [asdict(row) for row in rows],
        "milliseconds": times,
        "ratios": {name: asdict(timings.ratio(name, "1.0")) for name in timings.names},
        "batch": BATCH,
        "files": {name: str(path) for name, path in written.items()},
    }
