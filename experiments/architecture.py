"""Channels left in each layer at the same cut of FLOPs: ours against NS and SSL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.experiment import LABELS, ExperimentRun
from experiments.figures import COLOURS, GREY, canvas, label_ends
from experiments.methods import chosen
from experiments.paper import ARCHITECTURE_CUT
from experiments.tables import percent
from experiments.tables import table as markdown
from slimilar.pipeline.analysis import plan_from
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class ArchitectureSettings:
    """`cut` is the share of FLOPs removed, `sparse_epochs` the training before pruning of NS and SSL."""

    network: str
    methods: tuple[str, ...]
    cut: float
    sparse_epochs: int


SETTINGS = {
    "paper": ArchitectureSettings("vgg16-cifar10-full", ("Ours", "NS", "SSL"), ARCHITECTURE_CUT, 60),
    "medium": ArchitectureSettings("vgg16-cifar10", ("Ours", "NS", "SSL"), ARCHITECTURE_CUT, 10),
    "small": ArchitectureSettings("vgg16-cifar10", ("Ours", "NS", "SSL"), ARCHITECTURE_CUT, 1),
    "tiny": ArchitectureSettings("demo", ("Ours", "NS"), ARCHITECTURE_CUT, 1),
}


def trains(settings: ArchitectureSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return settings.sparse_epochs > 0


def run(experiment: ExperimentRun) -> None:
    """Let every method choose, and cut all of them to the same FLOPs."""
    for method in experiment.settings.methods:
        experiment.ledger.row({"method": method}, partial(_widths, experiment, method))


def _widths(experiment: ExperimentRun, method: str) -> dict[str, Any]:
    settings = experiment.settings
    network = experiment.network(settings.network)
    orders = chosen(experiment, settings.network, method, settings.sparse_epochs)
    plan = plan_from(network.model, network.example, orders, residual=network.residual)
    cut = plan.at(flops=1 - settings.cut, round_to=1)
    return {
        "pruned": round(100 * (1 - cut.flops / cut.before.flops), 2),
        "parameters": round(100 * (1 - cut.params / cut.before.params), 2),
        "original": {group.name: group.width for group in plan.groups},
        "widths": dict(cut.widths),
    }


def table(ledger: RowLedger) -> str:
    """Return the widths, layer by layer."""
    settings = ledger.header["settings"]["experiment"]
    original = ledger.rows[0]["original"]
    rows: list[list[object]] = [
        [name.removeprefix("features."), width, *(r["widths"].get(name, width) for r in ledger.rows)]
        for name, width in original.items()
    ]
    rows.append(["all", sum(original.values()), *(sum(r["widths"].values()) for r in ledger.rows)])
    upper = list(original)[len(original) // 2 :]
    kept = [sum(r["widths"].get(n, 0) for n in upper) / sum(original[n] for n in upper) for r in ledger.rows]
    rows.append(["left of the upper half", "100 %", *(percent(100 * k, 1) for k in kept)])
    rows.append(["FLOPs pruned", None, *(percent(r["pruned"]) for r in ledger.rows)])
    rows.append(["parameters pruned", None, *(percent(r["parameters"]) for r in ledger.rows)])
    head = ["layer", "before", *(r["method"] for r in ledger.rows)]
    return f"{LABELS[settings['network']]}, {100 * settings['cut']:.0f} % of FLOPs pruned.\n\n{markdown(head, rows)}"


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw the channels that are left as a line for every method, over the original widths."""
    original = ledger.rows[0]["original"]
    figure, axes = canvas(1, 1, width=7.2, height=3.4)
    axis, x = axes[0, 0], np.arange(len(original))
    axis.bar(x, list(original.values()), color="#E8E8E8", width=0.8)
    axis.text(x[-1], list(original.values())[-1], "before", color=GREY, ha="center", va="bottom", fontsize=8)
    ends = {}
    for row in ledger.rows:
        y = [row["widths"].get(name, width) for name, width in original.items()]
        colour = COLOURS[row["method"]]
        axis.step(x, y, where="mid", color=colour, lw=2.2 if row["method"] == "Ours" else 1.5)
        axis.plot(x, y, "o", color=colour, ms=3.5)
        ends[row["method"]] = (x[-1] + 0.6, y[-1], colour)
    label_ends(axis, ends, gap=0.06 * max(original.values()))
    axis.set_xticks(x, [name.removeprefix("features.") for name in original], rotation=45, ha="right")
    axis.set_ylabel("channels left")
    return {"": figure}
