"""Rows of the benchmark, appended as soon as they are known, and the table made of them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from _results import opened

from _accuracy.images import CALIBRATION
from _accuracy.methods import METHODS
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

GOALS = {
    ("mobilenetv2-imagenet", "auto"): {
        0.85: 68.9,
        0.75: 64.9,
        0.6: 54.9,
    },  # 2, 6 and 16 points below the original
    ("resnet50-imagenet", "auto"): {0.75: 71.4, 0.58: 69.9, 0.5: 67.4},
    ("vgg16-cifar10", "auto"): {0.7: 92.04, 0.6: 91.95, 0.5: 91.36, 0.33: 90.15},  # the earlier fit, less 0.2
    ("resnet56-cifar10", "auto"): {0.7: 93.07, 0.6: 93.09, 0.5: 91.98, 0.35: 88.99},
    ("resnet20-cifar10", "auto"): {0.7: 90.61, 0.5: 86.63},
    ("dncnn-denoise", "auto"): {0.7: 28.51, 0.5: 28.36},  # dB
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
    lines += [_line(found) for found in sorted(_by_setting(rows(log)), key=_place)]
    write_text(file, "\n".join(lines) + "\n")


def _by_setting(found: list[Row]) -> list[list[Row]]:
    """Return the rows that differ in nothing but the seed, together."""
    together: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        key = row["network"], row["method"], row["flops"], _calibration(row)
        together.setdefault(key, []).append(row)
    return list(together.values())


def _calibration(row: Row) -> int:
    """Return how many images a row was calibrated with."""
    usual = CALIBRATION[row["network"].rpartition("-")[2]]
    return int(row.get("calibration", usual))


def _place(found: list[Row]) -> tuple[str, float, float]:
    return found[0]["network"], -found[0]["flops"], -mean(r["accuracy"] for r in found)


def _line(found: list[Row]) -> str:
    row = found[0]
    data, words, _ = METHODS.get(row["method"], ("", "before pruning", None))
    if data == "images":
        data = f"{_calibration(row):,} images"
    goal = GOALS.get((row["network"], row["method"]), {}).get(row["flops"], "")
    accuracy, agreement, seconds, cpu = (
        mean(r[key] for r in found) for key in ("accuracy", "agreement", "seconds", "cpu")
    )
    spread = f" ± {stdev(r['accuracy'] for r in found):.2f} ({len(found)} seeds)" if len(found) > 1 else ""
    return (
        f"| {row['network']} | {row['flops_left']:.1%} | {words} | {data} | {accuracy:.2f}{spread} | {goal} "
        f"| {agreement:.2f} | {row['images']:,} | {seconds:.0f} ({cpu:.0f}) |"
    )
