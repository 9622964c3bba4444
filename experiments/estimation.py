"""Distance by activations (Eq. 1) against distance by batch norm (Eq. 4): what is pruned, how alike, how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import slimilar
from experiments.distances import Given, by_activations, by_norm, outputs
from experiments.experiment import LABELS, ExperimentRun, TrainedNetwork
from experiments.figures import BLUE, GREY, ORANGE, canvas
from experiments.tables import percent
from experiments.tables import table as markdown
from slimilar.pipeline import apply
from slimilar.planning.target import PruningTarget
from slimilar.similarity.distances import activation_distance
from slimilar.similarity.linkage import linkage_tree
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class EstimationSettings:
    """Cuts are (share of FLOPs removed, what the consumers of removed channels do instead)."""

    network: str
    batches: tuple[int, ...]
    trials: int
    cuts: tuple[tuple[float, str], ...]
    finetune: bool
    test: int | None  # test images of a trial: there are many trials
    layers: tuple[str, ...]  # whose matrices are shown


SETTINGS = {
    "paper": EstimationSettings(
        "vgg16-cifar10-full", (16, 32, 64, 128, 256), 20, ((0.5, "none"), (0.7, "none")), True, None,
        ("features.bn1_2", "features.bn2_2", "features.bn3_3", "features.bn4_3"),
    ),
    "medium": EstimationSettings(
        "vgg16-cifar10", (16, 64, 256, 1024), 20, ((0.2, "none"), (0.3, "none"), (0.3, "linear")), False, 2000,
        ("features.bn1_2", "features.bn2_2", "features.bn3_3", "features.bn4_3"),
    ),
    "small": EstimationSettings(
        "vgg16-cifar10", (16, 64, 256), 20, ((0.2, "none"), (0.3, "none"), (0.3, "linear")), False, 300,
        ("features.bn1_2", "features.bn2_2", "features.bn3_3", "features.bn4_3"),
    ),
    "tiny": EstimationSettings("demo", (4, 8), 3, ((0.3, "none"), (0.3, "linear")), True, 50, ("features.bn1_2",)),
}  # fmt: skip
SHOWN = 48  # channels of a matrix in the figure


def trains(settings: EstimationSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return settings.finetune


def run(experiment: ExperimentRun) -> None:
    """Prune by Eq. 4 once, and by Eq. 1 on many random batches; then compare matrices and times."""
    name = experiment.settings.network
    experiment.base(name)
    experiment.ledger.row(
        {"by": "batch norm"}, lambda: _pruned(experiment, by_norm(experiment.network(name).model), "eq4")
    )
    for batch in experiment.settings.batches:
        for trial in range(experiment.settings.trials):
            key = {"by": "activations", "batch": batch, "trial": trial}
            experiment.ledger.row(key, partial(_trial, experiment, batch, trial))
    experiment.ledger.row({"what": "matrices"}, lambda: _matrices(experiment))
    experiment.ledger.row({"what": "times"}, lambda: _times(experiment))


def _batch(network: TrainedNetwork, size: int, trial: int, seed: int) -> Tensor:
    """Return random training images; other ones in every trial, the same in every run."""
    generator = torch.Generator().manual_seed(1000 * (seed + 1) + trial)
    assert network.train is not None
    return network.train.batch(torch.randperm(len(network.train), generator=generator)[:size])[0]


def _measured(experiment: ExperimentRun, size: int, trial: int) -> dict[str, Tensor]:
    network = experiment.network(experiment.settings.network)
    return by_activations(network.model, _batch(network, size, trial, experiment.seed))


def _trial(experiment: ExperimentRun, size: int, trial: int) -> dict[str, Any]:
    return _pruned(experiment, _measured(experiment, size, trial), f"{size}-{trial}")


def _pruned(experiment: ExperimentRun, distances: dict[str, Tensor], by: str) -> dict[str, Any]:
    """Return the accuracy of the network at every cut, and how much of the last choice is that of Eq. 4.

    `by` names the distances among those of this experiment.
    """
    network = experiment.network(experiment.settings.network)
    plan = slimilar.analyze(
        network.model, network.example, criterion=Given(distances), residual=network.residual
    )
    if experiment.settings.test is not None:
        network = _with_test(network, experiment.settings.test)
    accuracy = []
    for share, substitute in experiment.settings.cuts:
        cut = plan.at(flops=1 - share, round_to=1)
        small = apply(network.model, network.example, plan, cut, substitute=substitute, verify=False).model
        if experiment.settings.finetune:
            small = experiment.finetuned(
                network, small, f"estimation-{network.name}-{by}-{share:g}-{substitute}"
            )
        accuracy.append(experiment.score(network, small)["accuracy"])
    last = PruningTarget("flops", 1 - experiment.settings.cuts[-1][0], round_to=1)
    by_eq4 = slimilar.analyze(
        network.model, network.example, criterion=Given(by_norm(network.model)), residual=network.residual
    )
    common = overlap(plan.cut(last).kept, by_eq4.cut(last).kept)
    return {"accuracies": accuracy, "common": round(common, 4)}


def _with_test(network: TrainedNetwork, count: int) -> TrainedNetwork:
    return replace(network, test=network.test.first(count))


def _matrices(experiment: ExperimentRun) -> dict[str, Any]:
    """Average Eq. 1 over all trials of the largest batch, and hold it against Eq. 4."""
    network, settings = experiment.network(experiment.settings.network), experiment.settings
    expected = by_norm(network.model)
    total = {name: torch.zeros_like(d) for name, d in expected.items()}
    for trial in range(settings.trials):
        for name, distance in _measured(experiment, max(settings.batches), trial).items():
            total[name] += distance / settings.trials
    agreement = {name: _agreement(total[name], expected[name]) for name in expected}
    shown = {name: _shown(total[name], expected[name]) for name in settings.layers}
    return {"agreement": agreement, "shown": shown}


def _agreement(measured: Tensor, expected: Tensor) -> dict[str, float]:
    """Return how the entries off the diagonal compare."""
    off = ~torch.eye(len(measured), dtype=torch.bool)
    a, b = measured[off], expected[off]
    return {
        "correlation": round(float(torch.corrcoef(torch.stack([a, b]))[0, 1]), 4),
        "bias": round(float((a - b).mean() / b.mean()), 4),
        "error": round(float((a - b).abs().mean() / b.mean()), 4),
    }


def _shown(measured: Tensor, expected: Tensor) -> dict[str, Any]:
    """Return both matrices for some channels, ordered by the tree of Eq. 4 so that clusters are blocks."""
    from scipy.cluster.hierarchy import leaves_list

    order = torch.from_numpy(leaves_list(linkage_tree(expected)).astype(np.int64))
    order = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).long()]
    return {
        name: [[float(f"{v:.4g}") for v in row] for row in matrix[order][:, order].tolist()]
        for name, matrix in (("activations", measured), ("batch norm", expected))
    }


def _times(experiment: ExperimentRun) -> dict[str, Any]:
    """Time both ways for the whole network and, for the lowest layer, without the forward pass."""
    network = experiment.network(experiment.settings.network)
    found: dict[str, Any] = {"batch norm": _seconds(lambda: by_norm(network.model), 5)}
    for size in experiment.settings.batches:
        images = _batch(network, size, 0, experiment.seed)
        held = outputs(network.model, images)
        found[f"activations of {size}"] = _seconds(partial(by_activations, network.model, images), 1)
        found[f"matrices of {size}"] = _seconds(partial(_matrices_of, held), 1)
    return {"times": found}


def _matrices_of(held: Mapping[str, Tensor]) -> list[Tensor]:
    return [activation_distance(out) for out in held.values()]


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the processor's time, which a shared machine disturbs less than the clock on the wall."""
    start = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - start) / rounds


def overlap(first: Mapping[str, Sequence[int]], second: Mapping[str, Sequence[int]]) -> float:
    """Return the share of channels that both keep, of those that either keeps, over all layers."""
    both = sum(len(set(first[g]) & set(second[g])) for g in first)
    either = sum(len(set(first[g]) | set(second[g])) for g in first)
    return both / max(1, either)


def table(ledger: RowLedger) -> str:
    """Return accuracies by batch size, agreement of the matrices by layer, and times."""
    settings = ledger.header["settings"]["experiment"]
    words = (
        f"{LABELS[settings['network']]}. {_unpruned(ledger)} Pruned networks are scored on "
        f"{settings['test'] or 'all'} of them, {'after' if settings['finetune'] else 'without any'} fine-tuning; "
        "the linear reconstruction knows batch norms and filters, and no images."
    )
    return "\n\n".join(
        [
            words,
            "## Accuracy of the pruned network",
            _accuracies(ledger, settings),
            "## The two distances, entry by entry",
            _agreements(ledger),
            "## Processor time",
            _time_table(ledger, settings),
        ]
    )


def _unpruned(ledger: RowLedger) -> str:
    row = ledger.find(method="base")
    return "" if row is None else f"Unpruned: {row['accuracy']:.2f} % of {row['images']} test images."


def _accuracies(ledger: RowLedger, settings: dict[str, Any]) -> str:
    by_norm_row = ledger.find(by="batch norm") or {}
    rows = []
    for i, (share, substitute) in enumerate(settings["cuts"]):
        for batch in settings["batches"]:
            trials = ledger.all(by="activations", batch=batch)
            values = np.array([row["accuracies"][i] for row in trials])
            alike = np.mean([row["common"] for row in trials])
            rows.append(
                [f"-{100 * share:.0f} %", substitute, batch, len(values), percent(values.mean()),
                 f"{values.min():.1f} to {values.max():.1f} %", percent(values.std(ddof=1)),
                 percent(by_norm_row["accuracies"][i]), percent(100 * alike, 0)]
            )  # fmt: skip
    head = ["FLOPs", "reconstruction", "batch", "trials", "Eq. 1: mean", "range", "standard deviation", "Eq. 4",
            "kept channels in common (last cut)"]  # fmt: skip
    return markdown(head, rows)


def _agreements(ledger: RowLedger) -> str:
    found = (ledger.find(what="matrices") or {})["agreement"]
    rows = [
        [name, a["correlation"], f"{100 * a['bias']:+.1f} %", f"{100 * a['error']:.1f} %"]
        for name, a in found.items()
    ]
    head = ["batch norm", "correlation", "mean of Eq. 1 above that of Eq. 4", "mean absolute difference"]
    return markdown(head, rows)


def _time_table(ledger: RowLedger, settings: dict[str, Any]) -> str:
    times = (ledger.find(what="times") or {})["times"]
    fast = times["batch norm"]
    rows = [["Eq. 4", None, f"{1000 * fast:.1f} ms", None, "1"]]
    for size in settings["batches"]:
        whole, matrices = times[f"activations of {size}"], times[f"matrices of {size}"]
        rows.append(
            ["Eq. 1", size, f"{1000 * whole:.0f} ms", f"{1000 * matrices:.0f} ms", f"{whole / fast:,.0f}"]
        )
    return markdown(["", "batch", "all layers", "without the forward pass", "times as long as Eq. 4"], rows)


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw mean and range against batch size, and the matrices of some layers."""
    return {"": _accuracy_figure(ledger), "matrices": _matrix_figure(ledger)}


def _accuracy_figure(ledger: RowLedger) -> Any:
    settings = ledger.header["settings"]["experiment"]
    cuts, batches = settings["cuts"], settings["batches"]
    figure, axes = canvas(1, len(cuts), width=2.4 * len(cuts) + 0.6, height=2.9, sharey=True)
    expected = (ledger.find(by="batch norm") or {})["accuracies"]
    for i, (share, substitute) in enumerate(cuts):
        axis = axes[0, i]
        trials = [[r["accuracies"][i] for r in ledger.all(by="activations", batch=b)] for b in batches]
        places = np.arange(len(batches))
        axis.fill_between(
            places, [min(t) for t in trials], [max(t) for t in trials], color=BLUE, alpha=0.18, lw=0
        )
        axis.plot(places, [np.mean(t) for t in trials], color=BLUE, lw=1.8, marker="o", ms=4)
        axis.axhline(expected[i], color=ORANGE, ls=":", lw=1.8)
        axis.set_xticks(places, [str(b) for b in batches])
        axis.set_xlabel("images in a batch")
        what = "" if substitute == "none" else f", {substitute} reconstruction"
        axis.set_title(f"FLOPs −{100 * share:.0f} %{what}")
    axes[0, 0].set_ylabel("test accuracy in %")
    last = len(batches) - 1
    axes[0, 0].annotate(
        "Eq. 4", (last, expected[0]), (0, 4), textcoords="offset points", color=ORANGE, ha="right"
    )
    axes[0, 0].annotate(
        f"Eq. 1: mean and range\nof {settings['trials']} batches",
        (0.04, 0.05),
        xycoords="axes fraction",
        color=BLUE,
    )
    return figure


def _matrix_figure(ledger: RowLedger) -> Any:
    shown = (ledger.find(what="matrices") or {})["shown"]
    figure, axes = canvas(3, len(shown), width=1.75 * len(shown) + 0.8, height=5.3)
    titles = ("Eq. 1, mean of the batches", "Eq. 4", "absolute difference")
    for column, (layer, matrices) in enumerate(shown.items()):
        first, second = (np.array(matrices[k]) for k in ("activations", "batch norm"))
        top = max(first.max(), second.max())
        for row, matrix in enumerate((first, second, np.abs(first - second))):
            axis = axes[row, column]
            image = axis.imshow(matrix, cmap="viridis", vmin=0, vmax=top)
            axis.set_xticks([])
            axis.set_yticks([])
            if column == 0:
                axis.set_ylabel(titles[row], color=GREY)
        axes[0, column].set_title(layer.removeprefix("features."))
        figure.colorbar(image, ax=axes[:, column], orientation="horizontal", shrink=0.85, pad=0.02, aspect=18)
    return figure
