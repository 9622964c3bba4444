"""Rows of the benchmark, appended as soon as they are known, and the table made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _results import opened

from _accuracy.images import CALIBRATION
from _accuracy.methods import METHODS
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

GOALS = {
    ("vgg16-cifar10", "ours"): {0.7: 92.0, 0.5: 91.2, 0.33: 89.5},
    ("resnet56-cifar10", "ours"): {0.7: 93.0, 0.5: 92.0, 0.35: 88.5},
    ("resnet20-cifar10", "ours"): {0.7: 90.0, 0.5: 86.0},
    ("resnet50-imagenet", "ours"): {0.75: 70.4},  # within 3 points
    ("vgg16-cifar10", "synthesized"): {0.7: 91.4, 0.47: 88.0, 0.33: 83.5},
    ("resnet56-cifar10", "synthesized"): {0.7: 92.0, 0.5: 88.0},
}
Row = dict[str, Any]


def note(log: Path, row: Row) -> None:
    """Append a row, with the versions that made it."""
    opened(log, "benchmarks/_accuracy").append(row)


def rows(log: Path) -> list[Row]:
    """Return what is known already."""
    return RowLedger(log).rows


def write_table(log: Path, file: Path, reading: str) -> None:
    """Write the table, the words on how to read it above it."""
    lines = [
        "# Accuracy without training", "", reading.strip(), "",
        "| network | FLOPs left | method | data | accuracy | goal | agreement | images | seconds (CPU) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [_line(r) for r in sorted(rows(log), key=_place)]
    write_text(file, "\n".join(lines) + "\n")


def _place(row: Row) -> tuple[str, float, float]:
    return row["network"], -row["flops"], -row["accuracy"]


def _line(row: Row) -> str:
    data, words, _ = METHODS.get(row["method"], ("", "before pruning", None))
    if data == "images":
        data = f"{CALIBRATION[row['network'].split('-')[1]]:,} images"
    goal = GOALS.get((row["network"], row["method"]), {}).get(row["flops"], "")
    return (
        f"| {row['network']} | {row['flops_left']:.1%} | {words} | {data} | {row['accuracy']:.2f} | {goal} "
        f"| {row['agreement']:.2f} | {row['images']:,} | {row['seconds']:.0f} ({row['cpu']:.0f}) |"
    )
