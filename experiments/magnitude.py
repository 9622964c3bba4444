r"""The paper's motivation: similarity against magnitude where gammas are large and alike.

Two looks. First, a trained network's layers are parted into those whose smallest $|\gamma|$ is near the mean (alike)
and the others (spread), and only one half is pruned. Second, the network is rewritten: with $s > 0$, a channel's
$\gamma$ and $\beta$ times s and its consumer's kernel divided by s is the same function, because ReLU and max
pooling let a positive factor through; so every layer can have gammas as large and alike as one pleases. A criterion
that reads importance off the size of gamma then has nothing left to read.

Every layer loses the same share of its channels, so that nothing but the choice of channels differs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import slimilar
from experiments.bound import pairs
from experiments.experiment import LABELS, ExperimentRun, TrainedNetwork
from experiments.figures import BLUE, GREEN, GREY, ORANGE, canvas, label_ends
from experiments.tables import percent
from experiments.tables import table as markdown
from slimilar.criteria import Criterion, Weights, make
from slimilar.graph.groups import ChannelGroup
from slimilar.pipeline import apply
from slimilar.planning.assemble import Answer
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.row_ledger import RowLedger

CRITERIA = {
    "similarity": ("similarity", ORANGE),
    "bn-scale": ("size of gamma", BLUE),
    "magnitude-l2": ("size of filters", GREEN),
    "random": ("chance", GREY),
}
WHERE = {"alike": "layers with gammas alike", "spread": "the other layers", "all": "all layers"}
WRITTEN = {"trained": "as trained", "equal": "rewritten with equal gammas"}
LOOKS = (("alike", "trained"), ("spread", "trained"), ("all", "trained"), ("all", "equal"))
READS_NORMS = ("similarity", "bn-scale")  # the others choose alike however the network is written
DEAD = 0.01  # gammas below this share of the layer's largest are left as they are


@dataclass(frozen=True)
class MagnitudeSettings:
    """`shares` of channels that every layer loses; `substitutes` as in `slimilar.pipeline`."""

    networks: tuple[str, ...]
    shares: tuple[float, ...]
    substitutes: tuple[str, ...]


SETTINGS = {
    "paper": MagnitudeSettings(
        ("vgg16-cifar10-full", "preresnet110-cifar10"), (0.1, 0.2, 0.3, 0.4, 0.5), ("none", "linear")
    ),
    "medium": MagnitudeSettings(("resnet20-cifar10", "vgg16-cifar10"), (0.1, 0.25, 0.4), ("none", "linear")),
    "small": MagnitudeSettings(("resnet20-cifar10",), (0.1, 0.25, 0.4), ("none", "linear")),
    "tiny": MagnitudeSettings(("demo",), (0.2, 0.4), ("none", "linear")),
}  # fmt: skip


@dataclass(frozen=True)
class Evenly:
    """Another criterion's order with heights that are shares of a layer: the same ratio everywhere."""

    inner: Criterion
    name: str = "evenly"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[Answer]:
        """Return the removal order of every group."""
        return [
            RemovalOrder(order.removed, np.arange(len(order)) / (len(order) + 1), order.representative)
            if isinstance(order, RemovalOrder)
            else order
            for order in self.inner.orders(groups, weights)
        ]


def equal(network: TrainedNetwork) -> nn.Module:
    """Return the same function with every gamma as large as the largest of its layer."""
    model = copy.deepcopy(network.model)
    with torch.no_grad():
        for norm_name, conv_name in pairs(network):
            norm: Any = model.get_submodule(norm_name)
            conv: Any = model.get_submodule(conv_name)
            size = norm.weight.abs()
            factor = torch.where(size > DEAD * size.max(), size.max() / size, torch.ones_like(size))
            norm.weight.mul_(factor)
            norm.bias.mul_(factor)
            conv.weight.div_(factor[None, :, None, None])
    return model


def alike(network: TrainedNetwork) -> list[str]:
    """Return the half of the batch norms whose smallest |gamma| is nearest to their mean."""
    ratio = {}
    for norm, _ in pairs(network):
        size = _size(network, norm)
        ratio[norm] = float(size.min() / size.mean())
    return sorted(ratio, key=lambda name: -ratio[name])[: len(ratio) // 2]


def _size(network: TrainedNetwork, norm: str) -> Tensor:
    module: Any = network.model.get_submodule(norm)
    found: Tensor = module.weight.detach().abs()
    return found


def trains(_settings: MagnitudeSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return False


def run(experiment: ExperimentRun) -> None:
    """Prune parts of the network as it was trained, then all of it in both ways of writing."""
    for name in experiment.settings.networks:
        experiment.base(name)
        experiment.ledger.row({"network": name, "what": "gammas"}, partial(_gammas, experiment, name))
        for where, written in LOOKS:
            for criterion in CRITERIA if written == "trained" else READS_NORMS:
                for substitute in experiment.settings.substitutes:
                    key = {"network": name, "where": where, "written": written, "criterion": criterion,
                           "substitute": substitute}  # fmt: skip
                    experiment.ledger.row(key, partial(_pruned, experiment, **key))


def _gammas(experiment: ExperimentRun, name: str) -> dict[str, Any]:
    network = experiment.network(name)
    chosen = set(alike(network))
    found = {}
    for norm, _ in pairs(network):
        size = _size(network, norm)
        quantiles = [round(float(q), 5) for q in np.quantile(size.numpy(), (0, 0.25, 0.5, 0.75, 1))]
        found[norm] = {"quantiles": quantiles, "alike": norm in chosen}
    with torch.inference_mode():
        scores, again = network.model(network.images[:32]), equal(network)(network.images[:32])
    difference = float((scores - again).abs().max() / scores.abs().max())
    return {"gammas": found, "difference": float(f"{difference:.2g}")}


def _pruned(
    experiment: ExperimentRun, network: str, where: str, written: str, criterion: str, substitute: str
) -> dict[str, Any]:
    """Return the accuracy at every share, without fine-tuning."""
    opened = experiment.network(network)
    model = equal(opened) if written == "equal" else opened.model
    chosen = Evenly(make(criterion))
    plan = slimilar.analyze(
        model, opened.example, criterion=chosen, exclude=_left_whole(opened, model, where), residual=opened.residual
    )  # fmt: skip
    found = []
    for share in experiment.settings.shares:
        small = apply(
            model, opened.example, plan, plan.at(share, round_to=1), substitute=substitute, verify=False
        ).model
        found.append(experiment.score(opened, small)["accuracy"])
    return {"accuracies": found}


def _left_whole(network: TrainedNetwork, model: nn.Module, where: str) -> list[str]:
    """Return the convolutions that keep all their channels: those that write the norms that are not meant."""
    norms = {norm for norm, _ in pairs(network)}
    chosen = set(alike(network))
    wanted = {"all": norms, "alike": chosen, "spread": norms - chosen}[where]
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    written = {name: names[i - 1] for i, name in enumerate(names) if name in wanted}
    convs = [n for n in names if isinstance(model.get_submodule(n), nn.Conv2d)]
    return [n for n in convs if n not in written.values()]


def table(ledger: RowLedger) -> str:
    """Return accuracies by criterion and share of channels removed."""
    settings = ledger.header["settings"]["experiment"]
    parts = []
    for name in settings["networks"]:
        base = ledger.find(network=name, method="base") or {}
        gammas = ledger.find(network=name, what="gammas") or {}
        rows = [
            [WHERE[r["where"]], WRITTEN[r["written"]], CRITERIA[r["criterion"]][0], r["substitute"],
             *(percent(a) for a in r["accuracies"])]
            for r in ledger.all(network=name) if "accuracies" in r
        ]  # fmt: skip
        head = ["pruned", "network", "leaves first", "reconstruction",
                *(f"-{100 * s:.0f} % of channels" for s in settings["shares"])]  # fmt: skip
        words = (
            f"{LABELS[name]}. Unpruned: {base['accuracy']:.2f} % of {base['images']} test images; no fine-tuning. "
            f"Rewritten, its scores differ by {gammas['difference']:.0e} of the largest: rounding."
        )
        parts += [words, markdown(head, rows)]
    return "\n\n".join(parts)


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw accuracy against the share of channels for the four looks, plain removal and with reconstruction."""
    settings = ledger.header["settings"]["experiment"]
    return {
        ("" if i == 0 else name.replace(".", "")): _figure(ledger, settings, name)
        for i, name in enumerate(settings["networks"])
    }


def _figure(ledger: RowLedger, settings: dict[str, Any], network: str) -> Any:
    base = (ledger.find(network=network, method="base") or {})["accuracy"]
    substitutes = settings["substitutes"]
    figure, axes = canvas(
        len(substitutes), 4, width=10.5, height=2.5 * len(substitutes), sharey=True, sharex=True
    )
    x = [0, *(100 * s for s in settings["shares"])]
    for row, substitute in enumerate(substitutes):
        for column, (where, written) in enumerate(LOOKS):
            axis, ends = axes[row, column], {}
            for criterion, (label, colour) in CRITERIA.items():
                way = written if criterion in READS_NORMS else "trained"
                found = ledger.find(network=network, where=where, written=way, criterion=criterion,
                                    substitute=substitute)  # fmt: skip
                y = [base, *(found or {})["accuracies"]]
                axis.plot(x, y, color=colour, lw=1.8 if criterion == "similarity" else 1.2, marker="o", ms=3)
                ends[label] = (x[-1] + 1.5, y[-1], colour)
            if column == 3:
                label_ends(axis, ends, gap=8)
            if row == 0:
                title = f"{WHERE[where]},\n{WRITTEN[written]}"
                axis.set_title(title.replace("rewritten with ", "with "))
        axes[row, 0].set_ylabel(
            f"{'plain removal' if substitute == 'none' else substitute + ' reconstruction'}\naccuracy in %"
        )
    for axis in axes[-1]:
        axis.set_xlabel("channels removed in %")
    return figure
