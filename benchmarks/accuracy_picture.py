"""Draw the picture of the README, accuracy over FLOPs without training, from the rows of accuracy.py.

    python benchmarks/accuracy_picture.py [--log benchmarks/results/accuracy.jsonl] [--out docs/images/accuracy.svg]

One panel a network, one line a method; with several seeds of calibration images, the mean and the spread.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from _results import RESULTS

from slimilar.utils.row_ledger import RowLedger

NETWORKS = {"vgg16-cifar10": "VGG-16", "resnet56-cifar10": "ResNet-56", "resnet20-cifar10": "ResNet-20"}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """A method: its names among the rows, the best first, and how it is drawn."""

    methods: tuple[str, ...]
    label: str
    colour: str
    marker: str = "o"
    width: float = 1.4


LINES = (
    Line(("auto", "ours"), "Slimilar, 1,024 unlabelled images", "#d55e00", width=2.4),
    Line(("synthesized",), "Slimilar, synthesised images, no data", "#e69f00", "D"),
    Line(("similarity-linear-free",), "Slimilar, weights only, seconds", "#cc79a7", "v"),
    Line(("grail",), "GRAIL (our implementation), same images", "#0072b2", "s"),
    Line(("folding",), "Model Folding (ours), no data", "#56b4e9", "^"),
    Line(("torch-pruning",), "Torch-Pruning, no data", "#009e73", "P"),
    Line(("none",), "plain removal, as in the paper", "#555555", "X"),
)


def points(rows: Rows, network: str, line: Line) -> Mapping[float, list[float]]:
    """Return the accuracies of a method, one for each seed, by the share of FLOPs that was asked for."""
    mine = [row for row in rows if row["network"] == network and row["split"] == "test"]
    used = next((m for m in line.methods if any(row["method"] == m for row in mine)), None)
    found: dict[float, list[float]] = {
        1.0: [row["accuracy"] for row in mine if row["method"] == "before"][:1]
    }
    for row in mine:
        if row["method"] == used and row.get("calibration", 1024) == 1024:
            found.setdefault(row["flops"], []).append(row["accuracy"])
    return dict(sorted(found.items(), reverse=True))


def draw(rows: Rows, file: Path) -> None:
    """Write the picture; the same rows give the same bytes."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slimilar", "font.size": 10})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(NETWORKS), figsize=(10, 4.3), sharey=True, layout="constrained")
    for panel, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        for line in LINES:
            _draw_line(panel, points(rows, network, line), line)
        panel.set_title(title, fontweight="bold")
        panel.set_xlim(103, 28)
        panel.set_xticks([100, 70, 50, 33])
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("FLOPs left, %")
    panels[0].set_ylabel("CIFAR-10 test accuracy, %")
    panels[0].set_ylim(0, 100)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(file, metadata={"Date": None}, facecolor="white")


def _draw_line(panel: Any, found: Mapping[float, list[float]], line: Line) -> None:
    shares = [100 * share for share in found]
    means = [mean(values) for values in found.values()]
    panel.plot(
        shares, means, color=line.colour, marker=line.marker, linewidth=line.width, label=line.label, ms=5
    )
    spread = [[m - min(v) for m, v in zip(means, found.values(), strict=True)],
              [max(v) - m for m, v in zip(means, found.values(), strict=True)]]  # fmt: skip
    if any(map(any, spread)):
        panel.errorbar(
            shares, means, spread, color=line.colour, linewidth=0, elinewidth=line.width, capsize=3
        )
    if line is LINES[0]:
        for share, height in zip(shares[1:], means[1:], strict=True):
            if round(share) == 60:  # there would be no room for a number between two others
                continue
            panel.annotate(
                f"{height:.2f}", (share, height), (0, 7), textcoords="offset points", ha="center",
                color=line.colour, fontweight="bold", fontsize=9,
            )  # fmt: skip


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, default=RESULTS / "accuracy.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS.parents[1] / "docs" / "images" / "accuracy.svg")
    given = parser.parse_args()
    draw(RowLedger(given.log).rows, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
