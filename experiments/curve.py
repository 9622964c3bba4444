"""Accuracy against the share of pruned FLOPs: all methods, each as its paper has it and with our reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.experiment import LABELS, ExperimentRun
from experiments.figures import COLOURS, GREY, canvas, label_ends
from experiments.methods import compared
from experiments.seeds import accuracy, over_seeds
from experiments.tables import apart
from experiments.tables import table as markdown
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class CurveSettings:
    """`budgets` are shares of FLOPs that are left, `images` those that the reconstruction is fitted to."""

    networks: tuple[str, ...]
    methods: tuple[str, ...]
    budgets: tuple[str, ...]
    sparse_epochs: int
    images: int


APART = True  # fitted networks have the scale's recipe for them
ALL = ("Ours", "NS", "SSL", "RDF", "PFGM", "SFP")
SETTINGS = {
    "paper": CurveSettings(
        ("vgg16-cifar10-full", "preresnet110-cifar10", "vgg16-cifar100-full", "preresnet110-cifar100"),
        ALL, ("0.8", "0.7", "0.6", "0.5", "0.4", "0.3", "0.2"), 60, 1024,
    ),
    "medium": CurveSettings(("resnet20-cifar10",), ALL, ("0.4", "0.65"), 10, 1024),
    "small": CurveSettings(("resnet20-cifar10",), ALL, ("0.65", "0.4"), 1, 256),
    "tiny": CurveSettings(("demo",), ("Ours", "PFGM"), ("0.7", "0.4"), 1, 32),
}  # fmt: skip


def trains(_settings: CurveSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return True


def run(experiment: ExperimentRun) -> None:
    """Compare all methods at all budgets on every network."""
    settings = experiment.settings
    for name in settings.networks:
        compared(
            experiment,
            name,
            settings.methods,
            settings.budgets,
            settings.sparse_epochs,
            settings.images,
            APART,
        )


def table(ledger: RowLedger) -> str:
    """Return accuracies, a line for every method."""
    settings = ledger.header["settings"]["experiment"]
    parts = []
    for network in settings["networks"]:
        base = ledger.find(network=network, method="base") or {}
        budgets = settings["budgets"]
        rows = [
            [f"{method}{'' if own else ' + reconstruction'}", *_cells(ledger, network, method, own, budgets)]
            for method in settings["methods"] for own in (True, False)
        ]  # fmt: skip
        head = ["method", *(f"{100 * float(b):.0f} % of FLOPs left" for b in budgets)]
        words = (
            f"{LABELS[network]}. Unpruned: {base['accuracy']:.2f} % of {base['images']} test images. In brackets: "
            f"before fine-tuning. The reconstruction is fitted to {settings['images']:,} unlabelled training images. "
            f"NS, SSL and SFP have a training phase before pruning, which the others do not have.{apart(ledger)}"
        )
        parts += [words, markdown(head, rows)]
    return "\n\n".join(parts)


def _cells(ledger: RowLedger, network: str, method: str, own: bool, budgets: list[str]) -> list[str | None]:
    found = {r["budget"]: r for r in over_seeds(ledger.all(network=network, method=method, own=own))}
    rows = [found.get(b) for b in budgets]
    return [None if r is None or r["error"] else f"{accuracy(r)} ({r['before']:.1f})" for r in rows]


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw a curve for every method; on the right the same with our reconstruction."""
    settings = ledger.header["settings"]["experiment"]
    return {
        ("" if i == 0 else name): _figure(ledger, settings, name)
        for i, name in enumerate(settings["networks"])
    }


def _figure(ledger: RowLedger, settings: dict[str, Any], network: str) -> Any:
    base = (ledger.find(network=network, method="base") or {})["accuracy"]
    figure, axes = canvas(1, 2, width=8.4, height=3.4, sharey=True)
    for axis, own, title in (
        (axes[0, 0], True, "each in its own way"),
        (axes[0, 1], False, "with our reconstruction"),
    ):
        ends = {}
        for method in reversed(settings["methods"]):
            rows = [
                r for r in over_seeds(ledger.all(network=network, method=method, own=own)) if not r["error"]
            ]
            rows.sort(key=lambda r: r["pruned"])
            if not rows:
                continue
            x, y = [0, *(r["pruned"] for r in rows)], [base, *(r["accuracy"] for r in rows)]
            axis.plot(x, y, color=COLOURS[method], lw=2.2 if method == "Ours" else 1.3, marker="o", ms=3.5)
            ends[method] = (max(x) + 1.5, y[-1], COLOURS[method])
        low, high = axis.get_ylim()
        label_ends(axis, ends, gap=0.055 * (high - low))
        axis.set_title(f"{title}, then fine-tuning")
        axis.set_xlabel("FLOPs pruned in %")
        axis.axhline(base, color=GREY, lw=0.8, ls=":")
    axes[0, 0].set_ylabel("test accuracy in %")
    figure.suptitle(LABELS[network], fontsize=9, color=GREY, x=0.99, ha="right")
    return figure
