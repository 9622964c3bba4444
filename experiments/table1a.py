"""Table 1 (a): accuracy and FLOPs on CIFAR; all methods are brought to the FLOPs of the paper's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any

import slimilar
from experiments.epochs import by_epoch
from experiments.experiment import LABELS, ExperimentRun
from experiments.figures import COLOURS, GREY, canvas
from experiments.methods import compared
from experiments.paper import PROPERTIES, TABLE_1A, PaperRow
from experiments.seeds import accuracy, over_seeds
from experiments.tables import apart, percent, tick
from experiments.tables import table as markdown
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class Block:
    """A network here, the one of the paper that it stands for, and the methods that are compared on it."""

    network: str
    dataset: str
    stands_for: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Table1aSettings:
    """`sparse_epochs` is the training before pruning of methods that have one (NS, SSL, SFP).

    `images` are those that the reconstruction is fitted to.
    """

    blocks: tuple[Block, ...]
    sparse_epochs: int
    images: int


APART = True  # fitted networks have the scale's recipe for them
ALL = ("Ours", "NS", "SSL", "RDF", "PFGM", "SFP")
SETTINGS = {
    "paper": Table1aSettings(
        (
            Block("vgg16-cifar10-full", "CIFAR-10", "VGG-16", ALL),
            Block("preresnet110-cifar10", "CIFAR-10", "ResNet-110", ALL),
            Block("vgg16-cifar100-full", "CIFAR-100", "VGG-16", ALL),
            Block("preresnet110-cifar100", "CIFAR-100", "ResNet-110", ALL),
        ),
        60,
        1024,
    ),
    "medium": Table1aSettings(
        (
            Block("vgg16-cifar10", "CIFAR-10", "VGG-16", ("Ours", "RDF", "NS", "SSL", "PFGM", "SFP")),
            Block("preresnet29-cifar10", "CIFAR-10", "ResNet-110", ALL),
        ),
        10,
        1024,
    ),
    "small": Table1aSettings(
        (
            Block("vgg16-cifar10", "CIFAR-10", "VGG-16", ("Ours", "NS", "SSL", "RDF")),
            Block("resnet56-cifar100", "CIFAR-100", "ResNet-110", ("Ours", "NS", "SSL", "RDF")),
            # Last, because they have to be trained first.
            Block("preresnet20-cifar10", "CIFAR-10", "ResNet-110", ("Ours", "NS", "PFGM", "SFP")),
            Block("vgg16-cifar100", "CIFAR-100", "VGG-16", ("Ours", "NS", "SSL", "RDF")),
        ),
        1,
        1024,
    ),
    "tiny": Table1aSettings((Block("demo", "CIFAR-10", "VGG-16", ("Ours", "NS", "RDF")),), 1, 32),
}


def printed(dataset: str, stands_for: str, method: str) -> PaperRow | None:
    """Return the paper's line, if it has one."""
    return next(
        (r for r in TABLE_1A if (r.dataset, r.network, r.method) == (dataset, stands_for, method)), None
    )


def budget(dataset: str, stands_for: str) -> str:
    """Return the share of FLOPs that the paper's own method leaves; all methods must meet it.

    >>> budget("CIFAR-10", "VGG-16")
    '0.2906'
    """
    row = printed(dataset, stands_for, "Ours")
    assert row is not None
    assert row.pruned is not None
    return f"{1 - row.pruned / 100:.4f}"


def trains(_settings: Table1aSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return True


def run(experiment: ExperimentRun) -> None:
    """Compare the methods on every network, and see where the paper's threshold leads."""
    for block in experiment.settings.blocks:
        where = {"network": block.network, "what": "threshold"}
        experiment.ledger.row(where, partial(_at_threshold, experiment, block))
        share = budget(block.dataset, block.stands_for)
        compared(
            experiment,
            block.network,
            block.methods,
            [share],
            experiment.settings.sparse_epochs,
            experiment.settings.images,
            APART,
        )


def _at_threshold(experiment: ExperimentRun, block: Block) -> dict[str, Any]:
    network, row = experiment.network(block.network), printed(block.dataset, block.stands_for, "Ours")
    assert row is not None
    plan = slimilar.analyze(network.model, network.example, criterion="similarity", residual=network.residual)
    cut = plan.at(row.threshold, round_to=1)
    pruned = round(100 * (1 - cut.flops / cut.before.flops), 2)
    return {"threshold": row.threshold, "flops": cut.before.flops, "pruned": pruned}


def table(ledger: RowLedger) -> str:
    """Return the paper's columns for every network, with the paper's numbers behind ours."""
    head = ["Dataset", "Model", "Automatic", "Pre-train", "before fine-tuning", "Accuracy", "FLOPs", "Pruned",
            "paper: Accuracy", "paper: FLOPs", "paper: Pruned"]  # fmt: skip
    rows, notes = [], []
    settings = ledger.header["settings"]["experiment"]
    for block in _ordered(settings):
        base = ledger.find(network=block["network"], method="base")
        at = ledger.find(network=block["network"], what="threshold")
        if base is None or at is None:
            continue
        rows.append(_base(block, base, at))
        for method in block["methods"]:
            found = over_seeds(ledger.all(network=block["network"], method=method))
            rows += [_line(block, method, r) for r in found]
        notes.append(
            f"{LABELS[block['network']]}, for the paper's {block['stands_for']}: {base['images']} test images; the "
            f"paper's t = {at['threshold']:g} prunes {at['pruned']:.2f} % of FLOPs here."
        )
    words = (
        "All methods of a block are brought to the same FLOPs: the share that the paper prints for its own method. "
        "`+ reconstruction` lines are the same choice of channels with our linear reconstruction, fitted to "
        f"{settings['images']:,} unlabelled training images, before as much fine-tuning. NS, SSL and SFP have a "
        f"training phase before pruning, which the others do not have.{apart(ledger)}"
    )
    return "\n\n".join([markdown(head, rows), words, "\n".join(f"- {note}" for note in notes)])


def _ordered(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks as the paper has them."""
    return sorted(settings["blocks"], key=lambda block: str(block["dataset"]))


def _base(block: dict[str, Any], base: dict[str, Any], at: dict[str, Any]) -> list[object]:
    paper = printed(block["dataset"], block["stands_for"], "Base")
    theirs = [None] * 3 if paper is None else [percent(paper.accuracy), f"{paper.flops:.2f} M", None]
    name = f"**{LABELS[block['network']].split(',')[0]} Base**"
    flops = f"{at['flops'] / 1e6:.2f} M"
    return [block["dataset"], name, None, None, None, percent(base["accuracy"]), flops, None, *theirs]


def _line(block: dict[str, Any], method: str, row: dict[str, Any]) -> list[object]:
    paper = printed(block["dataset"], block["stands_for"], method) if row["own"] else None
    theirs: list[object] = [None] * 3
    if paper is not None:
        theirs = [percent(paper.accuracy), f"{paper.flops:.2f} M", percent(paper.pruned)]
    automatic, pretrained = PROPERTIES[method]
    name = method if row["own"] else f"{method} + reconstruction"
    if row["error"]:
        return ["", name, tick(automatic), tick(pretrained), row["error"], None, None, None, *theirs]
    return ["", name, tick(automatic), tick(pretrained), percent(row["before"]), accuracy(row),
            f"{row['flops'] / 1e6:.2f} M", percent(row["pruned"]), *theirs]  # fmt: skip


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw every method's accuracy, as the paper has it and with our reconstruction."""
    settings = ledger.header["settings"]["experiment"]
    known = {
        b["network"]: [m for m in b["methods"] if ledger.all(network=b["network"], method=m)]
        for b in settings["blocks"]
    }
    lines = by_epoch(ledger, [b["network"] for b in _ordered(settings)])
    # One method alone is no comparison.
    blocks = [b for b in _ordered(settings) if len(known[b["network"]]) > 1]
    if not blocks:
        return lines
    width = max(4.2, 2.7 * len(blocks) + 0.4)
    figure, axes = canvas(1, len(blocks), width=width, height=2.9)
    for axis, block in zip(axes[0], blocks, strict=True):
        base = ledger.find(network=block["network"], method="base") or {}
        methods = list(reversed(known[block["network"]]))
        shown = [base["accuracy"]]
        for place, method in enumerate(methods):
            found = over_seeds(ledger.all(network=block["network"], method=method))
            rows = {r["own"]: r for r in found if r["error"] is None}
            ends = [rows[own]["accuracy"] for own in (True, False) if own in rows]
            shown += ends
            axis.plot(ends, [place] * len(ends), color="#CCCCCC", lw=2, zorder=1)
            colour = COLOURS[method]
            for own, inside in ((True, "white"), (False, colour)):
                if own in rows:
                    axis.scatter(
                        rows[own]["accuracy"], place, s=42, color=inside, edgecolor=colour, zorder=2, lw=1.5
                    )
            if False in rows:
                axis.plot(rows[False]["before"], place, "|", color=colour, ms=11, mew=1.5, zorder=3)
                shown.append(rows[False]["before"])
        axis.axvline(base["accuracy"], color=GREY, lw=0.8, ls=":")
        axis.set_yticks(range(len(methods)), methods)
        axis.set_ylim(-0.6, len(methods) - 0.4)
        axis.set_title(LABELS[block["network"]].replace(", ", "\n"))
        axis.set_xlim(left=0 if min(shown) < 60 else min(shown) - 3)
        axis.set_xlabel("test accuracy in %")
    words = (
        "after fine-tuning: hollow, the method's own way; filled, with our reconstruction (stroke: before fine-tuning)"
        " · dotted: unpruned"
    )
    figure.suptitle(fill(words, int(18 * width)), fontsize=8, color=GREY, x=0.01, ha="left")
    return {"": figure} | lines
