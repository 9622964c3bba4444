"""Table 1 (c): ResNet-50 at four thresholds; FLOPs of a batch of 256, and how much of the saving is left of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import slimilar
from experiments.experiment import LABELS, ExperimentRun, TrainedNetwork
from experiments.figures import BLUE, GREY, ORANGE, canvas
from experiments.paper import BATCH, TABLE_1C
from experiments.tables import percent
from experiments.tables import table as markdown
from slimilar.deploy.latency import measure
from slimilar.deploy.runtimes import pytorch
from slimilar.pipeline import apply
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class Table1cSettings:
    """`batch` images at once are timed, for `rounds` rounds; `images` calibrate the reconstruction."""

    network: str
    thresholds: tuple[float, ...]
    substitutes: tuple[str, ...]
    batch: int
    rounds: int
    test: int | None
    images: int
    finetune: bool | None = None  # None where a sample without training images allows none


_PAPER = tuple(row.threshold or 0.0 for row in TABLE_1C)
SETTINGS = {
    "paper": Table1cSettings("resnet50-imagenet", _PAPER, ("none",), BATCH, 100, None, 256, True),
    "small": Table1cSettings("resnet50-imagenet", _PAPER, ("none", "linear"), 2, 15, 100, 64),
    "tiny": Table1cSettings("demo", (0.1, 0.2), ("none", "linear"), 1, 3, 50, 16, True),
}


def trains(settings: Table1cSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return bool(settings.finetune)


def run(experiment: ExperimentRun) -> None:
    """Cut at every threshold, measure accuracy, then time all of them, interleaved."""
    settings = experiment.settings
    experiment.ledger.row({"network": settings.network, "method": "base"}, lambda: _base(experiment))
    experiment.ledger.row({"what": "time"}, lambda: _times(experiment))
    for substitute in settings.substitutes:  # plain removal first: fitting takes longer
        for threshold in settings.thresholds:
            key = {"threshold": threshold, "substitute": substitute}
            experiment.ledger.row(key, partial(_pruned, experiment, threshold, substitute))


def _base(experiment: ExperimentRun) -> dict[str, Any]:
    network = experiment.network_with(experiment.settings.network, experiment.settings.test)
    flops = slimilar.count(network.model, network.example).flops
    return {"weights": network.digest, "flops": flops, **experiment.score(network, network.model)}


def _plan(network: TrainedNetwork) -> Plan:
    return slimilar.analyze(network.model, network.example, criterion="similarity", residual=network.residual)


def _pruned(experiment: ExperimentRun, threshold: float, substitute: str) -> dict[str, Any]:
    """Return FLOPs and accuracy; the consumers are fitted to images where there is a reconstruction."""
    network = experiment.network_with(experiment.settings.network, experiment.settings.test)
    plan = _plan(network)
    cut = plan.at(threshold, round_to=1)
    seen: Tensor | None = network.images[: experiment.settings.images] if substitute == "linear" else None
    small = apply(
        network.model, network.example, plan, cut, substitute=substitute, calibration=seen, verify=False
    ).model
    if experiment.settings.finetune:
        small = experiment.finetuned(network, small, f"table1c-{network.name}-{threshold:g}-{substitute}")
    return {**_cost(cut), **experiment.score(network, small)}


def _cost(cut: Cut) -> dict[str, Any]:
    return {"flops": cut.flops, "pruned": round(100 * (1 - cut.flops / cut.before.flops), 2)}


def _times(experiment: ExperimentRun) -> dict[str, Any]:
    """Time the unpruned network and all pruned ones, interleaved: a slow moment slows all of them."""
    network, settings = (
        experiment.network_with(experiment.settings.network, experiment.settings.test),
        experiment.settings,
    )
    plan = _plan(network)
    example = network.images[:1].expand(settings.batch, -1, -1, -1).contiguous()
    runs = {"base": pytorch(network.model, example)}
    for t in settings.thresholds:
        small = apply(
            network.model, network.example, plan, plan.at(t, round_to=1), reconstruction="none", verify=False
        ).model
        runs[str(t)] = pytorch(small, example)
    timings = measure(runs, seconds=0, least=settings.rounds, seed=experiment.seed)
    return {
        "threads": torch.get_num_threads(),
        "milliseconds": {name: _plain(timings.milliseconds(name)) for name in runs},
        "ratio": {name: _plain(timings.ratio(name, "base")) for name in runs},
    }


def _plain(interval: Any) -> list[float]:
    return [round(v, 4) for v in (interval.value, interval.low, interval.high)]


def table(ledger: RowLedger) -> str:
    """Return the paper's columns, ours and the paper's side by side."""
    settings = ledger.header["settings"]["experiment"]
    base, time = ledger.find(method="base") or {}, ledger.find(what="time") or {}
    printed = {row.threshold: row for row in TABLE_1C}
    rows = []
    for row in [r for r in ledger.rows if "threshold" in r]:
        t, paper = row["threshold"], printed.get(row["threshold"])
        milliseconds, ratio = time["milliseconds"][str(t)], time["ratio"][str(t)]
        saved, low, high = (100 * (1 - r) for r in (ratio[0], ratio[2], ratio[1]))
        here = [f"{row['accuracy'] - base['accuracy']:+.1f}", f"{row['top5'] - base['top5']:+.1f}",
                f"{row['flops'] * BATCH / 1e9:.0f} B", percent(row["pruned"]), f"{milliseconds[0]:.0f} ms",
                f"{saved:.1f} % ({low:.0f} to {high:.0f})"]  # fmt: skip
        theirs: list[object] = [None] * len(here)
        if paper is not None:
            theirs = [f"{paper.top1:+.2f}", f"{paper.top5:+.2f}", f"{paper.flops:.0f} B", percent(paper.pruned),
                      f"{paper.seconds} s", percent(paper.saved)]  # fmt: skip
        rows.append([f"t = {t:g}", row["substitute"], *here, *theirs])
    ours = ["Top-1", "Top-5", "FLOPs", "pruned", "time", "time saved (95 %)"]
    head = ["model", "reconstruction", *ours, *(f"paper: {name.split(' (')[0]}" for name in ours)]
    words = (
        f"{LABELS[settings['network']]}. Unpruned: top-1 {base['accuracy']:.2f} %, top-5 {base['top5']:.2f} % of "
        f"{base['images']} images, {base['flops'] * BATCH / 1e9:.0f} B FLOPs for a batch of {BATCH}, "
        f"{time['milliseconds']['base'][0]:.0f} ms for a batch of {settings['batch']} on {time['threads']} thread(s). "
        f"Top-1 and top-5 are changes in points, {'after' if settings.get('finetune') else 'without any'} fine-tuning; "
        f"the linear reconstruction is fitted to {settings['images']} unlabelled images."
    )
    return f"{words}\n\n{markdown(head, rows)}"


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw the saving of time against the saving of FLOPs, ours and the paper's."""
    time = ledger.find(what="time") or {}
    figure, axes = canvas(1, 1, width=4.4, height=3.6)
    axis = axes[0, 0]
    axis.plot([0, 70], [0, 70], color=GREY, lw=0.8, ls=":")
    axis.text(14, 16, "time = FLOPs", color=GREY, fontsize=8, rotation=40, rotation_mode="anchor")
    rows = {r["threshold"]: r for r in ledger.rows if "threshold" in r}
    x = [r["pruned"] for r in rows.values()]
    ratio = [time["ratio"][str(t)] for t in rows]
    y = [100 * (1 - r[0]) for r in ratio]
    error = [[100 * (r[2] - r[0]) for r in ratio], [100 * (r[0] - r[1]) for r in ratio]]
    axis.errorbar(x, y, error, color=ORANGE, marker="o", ms=5, lw=1.5, capsize=2)
    axis.annotate(
        "here, a CPU", (x[-1], y[-1]), (6, -2), textcoords="offset points", color=ORANGE, va="center"
    )
    axis.plot([r.pruned for r in TABLE_1C], [r.saved for r in TABLE_1C], color=BLUE, marker="s", ms=4)
    last = TABLE_1C[-1]
    axis.annotate("the paper,\na GPU", (last.pruned, last.saved or 0), (6, -2), textcoords="offset points", color=BLUE,
                  va="center")  # fmt: skip
    for t, row, saved in zip(rows, rows.values(), y, strict=True):
        axis.annotate(f"t = {t:g}", (row["pruned"], saved), (-4, 7), textcoords="offset points", fontsize=7.5,
                      color=GREY, ha="right", bbox={"fc": "white", "ec": "none", "pad": 0.6})  # fmt: skip
    axis.set_xlim(0, 80)
    axis.set_ylim(0, 75)
    axis.set_xlabel("FLOPs saved in %")
    axis.set_ylabel("time saved in %")
    return {"": figure}
