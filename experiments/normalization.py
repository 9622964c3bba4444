"""Distances with and without normalisation per layer: how they lie, what a threshold takes, what accuracy is left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import slimilar
from experiments.distances import Given, by_norm
from experiments.experiment import LABELS, ExperimentRun
from experiments.figures import BLUE, GREY, ORANGE, canvas, label_ends
from experiments.tables import apart, percent
from experiments.tables import table as markdown
from slimilar.pipeline import apply
from slimilar.similarity.distances import normalise
from slimilar.utils.row_ledger import RowLedger

WAYS = {True: "per layer", False: "none"}
COLOURS = {True: ORANGE, False: BLUE}


@dataclass(frozen=True)
class NormalizationSettings:
    """`cuts` are shares of FLOPs removed; `substitutes` what consumers do before the fine-tuning.

    `images` are those that the linear reconstruction is fitted to.
    """

    network: str
    cuts: tuple[float, ...]
    substitutes: tuple[str, ...]
    threshold: float  # of the figure: what lies below it is merged
    images: int


SETTINGS = {
    "paper": NormalizationSettings(
        "vgg16-cifar10-full", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), ("none",), 0.25, 1024
    ),
    "medium": NormalizationSettings("vgg16-cifar10", (0.3, 0.6), ("none", "linear"), 0.25, 1024),
    "small": NormalizationSettings("vgg16-cifar10", (0.3, 0.6), ("none", "linear"), 0.25, 256),
    "tiny": NormalizationSettings("demo", (0.3, 0.6), ("none", "linear"), 0.25, 32),
}
APART = True  # fitted networks have the scale's recipe for them
BINS = 60


def trains(_settings: NormalizationSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return True


def run(experiment: ExperimentRun) -> None:
    """Look at the distances, then prune by them in both ways to the same FLOPs."""
    name = experiment.settings.network
    experiment.base(name)
    experiment.ledger.row({"what": "distances"}, lambda: _distances(experiment))
    for cut in experiment.settings.cuts:
        for substitute in experiment.settings.substitutes:
            for per_layer in WAYS:
                key = {"per_layer": per_layer, "cut": cut, "substitute": substitute}
                experiment.ledger.row(key, partial(_pruned, experiment, per_layer, cut, substitute))


def _distances(experiment: ExperimentRun) -> dict[str, Any]:
    """Count the entries of every layer on a common scale; without normalisation that is the largest of all."""
    found = by_norm(experiment.network(experiment.settings.network).model)
    largest = max(float(d.max()) for d in found.values())
    return {
        "layers": {
            name: {
                "per_layer": _counted(normalise(distance), experiment.settings.threshold),
                "none": _counted(distance / largest, experiment.settings.threshold),
            }
            for name, distance in found.items()
        }
    }


def _counted(distance: Tensor, threshold: float) -> dict[str, Any]:
    """Return a histogram, and the share of pairs that lie below the threshold."""
    off = distance[~torch.eye(len(distance), dtype=torch.bool)]
    counts = np.histogram(off.numpy(), BINS, (0, 1))[0]
    return {"counts": counts.tolist(), "below": round(float((off < threshold).double().mean()), 4)}


def _pruned(experiment: ExperimentRun, per_layer: bool, cut: float, substitute: str) -> dict[str, Any]:
    network = experiment.network(experiment.settings.network)
    given = Given(by_norm(network.model), per_layer)
    plan = slimilar.analyze(network.model, network.example, criterion=given, residual=network.residual)
    chosen = plan.at(flops=1 - cut, round_to=1)
    assert network.train is not None
    few = torch.arange(experiment.settings.images)
    seen = network.train.batch(few)[0].contiguous() if substitute == "linear" else None
    small = apply(
        network.model,
        network.example,
        plan,
        chosen,
        substitute=substitute,
        calibration=seen,
        verify=False,
        seed=experiment.seed,
    ).model
    before = experiment.score(network, small)["accuracy"]
    run = f"normalization-{network.name}-{'each-layer' if per_layer else 'none'}-{cut:g}-{substitute}"
    tuned = experiment.finetuned(network, small, run, fitted=seen is not None)
    after = experiment.score(network, tuned)["accuracy"]
    return {
        "pruned": round(100 * (1 - chosen.flops / chosen.before.flops), 2),
        "threshold": chosen.threshold,
        "widths": dict(chosen.widths),
        "before": before,
        "accuracy": after,
    }


def table(ledger: RowLedger) -> str:
    """Return accuracies of both ways at the same cut, and the share of pairs below the threshold."""
    settings = ledger.header["settings"]["experiment"]
    base = ledger.find(method="base") or {}
    found = [r for r in ledger.rows if "cut" in r]
    rows = [
        [WAYS[r["per_layer"]], percent(r["pruned"]), r["substitute"], percent(r["before"]), percent(r["accuracy"]),
         min(r["widths"].values()), sum(1 for w in r["widths"].values() if w == 1)]
        for r in sorted(found, key=lambda r: (not r["per_layer"], r["cut"], r["substitute"] != "none"))
    ]  # fmt: skip
    layers = (ledger.find(what="distances") or {})["layers"]
    below = [
        [name.removeprefix("features."), percent(100 * layer["none"]["below"], 1),
         percent(100 * layer["per_layer"]["below"], 1)]
        for name, layer in layers.items()
    ]  # fmt: skip
    text = (
        f"{LABELS[settings['network']]}. Unpruned: {base['accuracy']:.2f} % of {base['images']} test images."
    )
    text += f" The linear reconstruction is fitted to {settings['images']:,} unlabelled training images.{apart(ledger)}"
    head = ["normalisation", "FLOPs pruned", "reconstruction", "accuracy before fine-tuning", "after fine-tuning",
            "channels of the narrowest layer", "layers with a single channel"]  # fmt: skip
    words = f"Share of pairs of channels whose distance lies below t = {settings['threshold']}:"
    return "\n\n".join([
        text, markdown(head, rows), words, markdown(["layer", "without normalisation", "normalised per layer"], below)
    ])  # fmt: skip


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw the distances of every layer as ridges, and the accuracy that is left."""
    return {"": _ridges(ledger), "accuracy": _curves(ledger)}


def _ridges(ledger: RowLedger) -> Any:
    settings = ledger.header["settings"]["experiment"]
    layers = (ledger.find(what="distances") or {})["layers"]
    figure, axes = canvas(1, 2, width=7.2, height=0.36 * len(layers) + 1.0, sharey=True)
    middles = (np.arange(BINS) + 0.5) / BINS
    ways = (("none", False, "without normalisation"), ("per_layer", True, "normalised per layer"))
    for axis, (way, per_layer, title) in zip(axes[0], ways, strict=True):
        axis.axvspan(0, settings["threshold"], color="#DDDDDD", lw=0)
        for place, layer in enumerate(layers.values()):
            counts = np.array(layer[way]["counts"], float)
            height = -place + 0.85 * counts / counts.max()
            axis.fill_between(middles, -place, height, color=COLOURS[per_layer], alpha=0.75, lw=0)
            axis.text(
                1.0, -place + 0.12, f"{100 * layer[way]['below']:.0f} %", fontsize=7.5, color=GREY, ha="right"
            )
        axis.set_title(title)
        axis.set_xlim(0, 1)
        axis.spines["left"].set_visible(False)
        axis.tick_params(left=False)
        axis.set_xlabel("distance" if per_layer else "distance, as a share of the largest of all layers")
    axes[0, 0].set_yticks([-i for i in range(len(layers))], [n.removeprefix("features.") for n in layers])
    figure.suptitle(f"grey: below t = {settings['threshold']:g}; at the right, the share of pairs there", fontsize=8,
                    color=GREY, x=0.99, ha="right")  # fmt: skip
    return figure


def _curves(ledger: RowLedger) -> Any:
    settings = ledger.header["settings"]["experiment"]
    base = (ledger.find(method="base") or {})["accuracy"]
    substitutes = settings["substitutes"]
    figure, axes = canvas(1, len(substitutes), width=3.6 * len(substitutes), height=3.0, sharey=True)
    for axis, substitute in zip(axes[0], substitutes, strict=True):
        ends = {}
        for per_layer, way in ((True, "normalised"), (False, "not normalised")):
            rows = [r for r in ledger.all(per_layer=per_layer, substitute=substitute) if "cut" in r]
            if not rows:
                continue
            x = [0, *(r["pruned"] for r in rows)]
            for kind, style in (("accuracy", "-"), ("before", ":")):
                axis.plot(
                    x, [base, *(r[kind] for r in rows)], style, color=COLOURS[per_layer], marker="o", ms=3.5
                )
            ends[way] = (x[-1] + 2, rows[-1]["accuracy"], COLOURS[per_layer])
        label_ends(axis, ends, gap=5)
        what = "plain removal" if substitute == "none" else f"{substitute} reconstruction"
        axis.set_title(f"{what}, then fine-tuning")
        axis.set_xlabel("FLOPs pruned in %")
        axis.set_xlim(-2, 100)
    axes[0, 0].set_ylabel("test accuracy in %")
    axes[0, 0].text(0.97, 0.6, "dotted: before fine-tuning", transform=axes[0, 0].transAxes, fontsize=8, color=GREY,
                    ha="right", va="top")  # fmt: skip
    return figure
