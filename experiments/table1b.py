"""Table 1 (b): ResNet-50 on ImageNet, all methods at the FLOPs of the paper's own.

With ImageNet's training images the methods train and fine-tune as the paper says. With a sample alone there is
no training at all: NS and SFP then rank the scales and filters that they find, without their training phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import slimilar
from experiments.experiment import LABELS, ExperimentRun
from experiments.figures import COLOURS, GREY, canvas
from experiments.methods import CRITERIA, LINEAR, compared, own_reconstruction
from experiments.paper import PROPERTIES, TABLE_1B
from experiments.tables import percent, tick
from experiments.tables import table as markdown
from slimilar.criteria import facts, make
from slimilar.pipeline import apply
from slimilar.planning.plan import Plan
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class Table1bSettings:
    """`images` are those that criteria and substitutes may look at; `test` images are scored."""

    network: str
    methods: tuple[str, ...]
    budget: str
    sparse_epochs: int
    images: int
    test: int | None


_METHODS = tuple(row.method for row in TABLE_1B)
_BUDGET = f"{1 - TABLE_1B[0].pruned / 100:.4f}"
SETTINGS = {
    "paper": Table1bSettings("resnet50-imagenet", _METHODS, _BUDGET, 60, 256, None),
    "small": Table1bSettings("resnet50-imagenet", _METHODS, _BUDGET, 0, 64, 100),
    "tiny": Table1bSettings("demo", ("Ours", "NS", "PFGM"), _BUDGET, 0, 16, 50),
}


def trains(settings: Table1bSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return settings.sparse_epochs > 0


def run(experiment: ExperimentRun) -> None:
    """Compare with training where there are training images and epochs for it, else without any."""
    settings = experiment.settings
    if settings.sparse_epochs:
        budgets = [settings.budget]
        compared(
            experiment, settings.network, settings.methods, budgets, settings.sparse_epochs, settings.images
        )
        return
    experiment.ledger.row({"network": settings.network, "method": "base"}, lambda: _base(experiment))
    plans: dict[str, Plan] = {}  # a choice may take long, and serves both substitutes
    rows = [(m, s) for m in settings.methods for s in dict.fromkeys((own_reconstruction(m), LINEAR))]
    for method, substitute in sorted(rows, key=_work):
        own = substitute == own_reconstruction(method)
        key = {
            "network": settings.network,
            "method": method,
            "budget": settings.budget,
            "substitute": substitute,
        }
        experiment.ledger.row(key, partial(_untrained, experiment, plans, method, substitute, own))


def _work(row: tuple[str, str]) -> tuple[bool, bool]:
    """Order rows: fitting takes longer, and most of all where the choice looks at images as well."""
    method, substitute = row
    return substitute == LINEAR, facts(CRITERIA[method]).needs == "images"


def _base(experiment: ExperimentRun) -> dict[str, Any]:
    network = experiment.network_with(experiment.settings.network, experiment.settings.test)
    return {"weights": network.digest, **experiment.score(network, network.model)}


def _untrained(
    experiment: ExperimentRun, plans: dict[str, Plan], method: str, substitute: str, own: bool
) -> dict[str, Any]:
    network, settings = (
        experiment.network_with(experiment.settings.network, experiment.settings.test),
        experiment.settings,
    )
    seen = network.images[: settings.images]
    if method not in plans:
        looks = facts(CRITERIA[method]).needs == "images"
        plans[method] = slimilar.analyze(
            network.model, network.example, criterion=make(CRITERIA[method], trained=True),
            calibration=seen if looks else None, residual=network.residual, seed=experiment.seed,
        )  # fmt: skip
    plan = plans[method]
    cut = plan.at(flops=float(settings.budget), round_to=1)
    given = seen if substitute == LINEAR else None
    small = apply(
        network.model,
        network.example,
        plan,
        cut,
        substitute=substitute,
        calibration=given,
        verify=False,
        seed=experiment.seed,
    ).model
    pruned = round(100 * (1 - cut.flops / cut.before.flops), 2)
    return {
        "own": own,
        "flops": cut.flops,
        "pruned": pruned,
        "error": None,
        **experiment.score(network, small),
    }


def table(ledger: RowLedger) -> str:
    """Return the paper's columns, with the paper's numbers behind ours."""
    settings = ledger.header["settings"]["experiment"]
    base = ledger.find(method="base") or {}
    printed = {row.method: row for row in TABLE_1B}
    rows = []
    for method in settings["methods"]:
        for row in ledger.all(method=method):
            paper, (automatic, pretrained) = printed[method], PROPERTIES[method]
            theirs: list[object] = [None] * 4
            if row["own"]:
                theirs = [f"{paper.top1:+.2f}", None if paper.top5 is None else f"{paper.top5:+.2f}",
                          f"{paper.flops:.2f} B", percent(paper.pruned)]  # fmt: skip
            name = method if row["own"] else f"{method} + reconstruction"
            top5 = f"{row['top5'] - base['top5']:+.1f}" if row.get("top5") is not None else None
            rows.append([name, tick(automatic), tick(pretrained), f"{row['accuracy'] - base['accuracy']:+.1f}", top5,
                         f"{row['flops'] / 1e9:.2f} B", percent(row["pruned"]), *theirs])  # fmt: skip
    head = ["Model", "Automatic", "Pre-train", "Top-1", "Top-5", "FLOPs", "Pruned",
            *(f"paper: {name}" for name in ("Top-1", "Top-5", "FLOPs", "Pruned"))]  # fmt: skip
    trained = (
        "Methods were trained and fine-tuned as the paper says."
        if settings["sparse_epochs"]
        else "Nothing is trained here, neither before pruning (NS, SFP) nor after it, while the paper fine-tunes "
        "everything for 60 epochs: the columns are not comparable, the lines are."
    )
    words = (
        f"{LABELS[settings['network']]}. Unpruned: top-1 {base['accuracy']:.1f} %, top-5 {base['top5']:.1f} % of "
        f"{base['images']} images. Changes in points. {trained}"
    )
    return f"{words}\n\n{markdown(head, rows)}"


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw top-1 accuracy of every method, its own way and with our reconstruction."""
    settings = ledger.header["settings"]["experiment"]
    base = ledger.find(method="base") or {}
    figure, axes = canvas(1, 1, width=5.4, height=0.45 * len(settings["methods"]) + 1.2)
    axis = axes[0, 0]
    for place, method in enumerate(reversed(settings["methods"])):
        rows = {row["own"]: row["accuracy"] for row in ledger.all(method=method)}
        axis.plot(list(rows.values()), [place] * len(rows), color="#CCCCCC", lw=2, zorder=1)
        for own, fill in ((True, "white"), (False, COLOURS[method])):
            if own in rows:
                axis.scatter(rows[own], place, s=42, color=fill, edgecolor=COLOURS[method], zorder=2, lw=1.5)
    axis.axvline(base["accuracy"], color=GREY, lw=0.8, ls=":")
    axis.set_yticks(range(len(settings["methods"])), list(reversed(settings["methods"])))
    axis.set_ylim(-0.6, len(settings["methods"]) - 0.4)
    axis.set_xlim(left=-2)
    axis.set_xlabel("top-1 accuracy in %")
    axis.set_title("hollow: its own way · filled: with our reconstruction · dotted: unpruned", fontsize=8, color=GREY,
                   fontweight="normal")  # fmt: skip
    return {"": figure}
