"""Test accuracy after every epoch of fine-tuning, where it was recorded. Nothing was chosen by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.experiment import LABELS
from experiments.figures import COLOURS, GREY, canvas, label_ends
from slimilar.utils.row_ledger import RowLedger


def by_epoch(ledger: RowLedger, networks: Sequence[str]) -> dict[str, Any]:
    """Return a figure with a panel for each network that has such rows; no figure without any."""
    found = {name: [r for r in ledger.all(network=name) if r.get("by_epoch")] for name in networks}
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        return {}
    figure, axes = canvas(1, len(found), width=4.6 * len(found), height=3.4)
    for axis, (name, rows) in zip(axes[0], found.items(), strict=True):
        base = ledger.find(network=name, method="base") or {}
        _panel(axis, rows, base["accuracy"])
        axis.set_title(LABELS[name])
    axes[0, 0].set_ylabel("test accuracy in %")
    return {"epochs": figure}


def _panel(axis: Any, rows: Sequence[dict[str, Any]], base: float) -> None:
    """Draw a line for each row; dashed ones are those with our reconstruction."""
    ends = {}
    for row in rows:
        colour, style = COLOURS[row["method"]], "-" if row["own"] else "--"
        axis.plot([0, *_epochs(row)], [row["before"], *row["by_epoch"]], style, color=colour, lw=1.4)
        name = row["method"] if row["own"] else f"{row['method']} + reconstruction"
        ends[f"{name}: {row['accuracy']:.1f}"] = (_epochs(row)[-1] + 0.4, row["accuracy"], colour)
    low = min(row["by_epoch"][0] for row in rows)
    axis.set_ylim(max(0.0, min(low, base - 8)) - 1, base + 1.5)
    label_ends(axis, ends, gap=0.055 * (base + 1.5 - low))
    axis.axhline(base, color=GREY, lw=0.8, ls=":")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("epoch of fine-tuning")


def _epochs(row: dict[str, Any]) -> range:
    return range(1, len(row["by_epoch"]) + 1)
