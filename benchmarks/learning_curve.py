"""Draw accuracy over the number of calibration images, from the rows of accuracy.py.

    python benchmarks/learning_curve.py [--log benchmarks/results/accuracy.jsonl]

One panel a network, one line a budget: the mean over seeds, with the spread; dashed, the result without data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import matplotlib.pyplot as plt

from slimilar.utils.row_ledger import RowLedger

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, default=RESULTS / "accuracy.jsonl")
    args = parser.parse_args()
    rows = RowLedger(args.log).rows
    curves = [r for r in rows if r["method"] == "auto" and "calibration" in r]
    amounts: dict[tuple[str, float], set[int]] = {}
    for r in curves:
        amounts.setdefault((r["network"], r["flops"]), set()).add(r["calibration"])
    curves = [
        r for r in curves if len(amounts[r["network"], r["flops"]]) > 1
    ]  # one number of images is no curve
    networks = sorted({r["network"] for r in curves})
    if not networks:
        raise SystemExit(
            f"{args.log} has no rows of method auto yet: run accuracy.py --methods auto --images ..."
        )
    figure, axes = plt.subplots(1, len(networks), figsize=(4 * len(networks), 3.5), squeeze=False)
    for panel, network in zip(axes[0], networks, strict=True):
        _panel(panel, network, [r for r in curves if r["network"] == network], rows)
    figure.tight_layout()
    figure.savefig(args.log.with_name("learning-curve.svg"), metadata={"Date": None})


def _panel(panel: Any, network: str, curves: list[Row], rows: list[Row]) -> None:
    for flops in sorted({r["flops"] for r in curves}, reverse=True):
        amounts = sorted({r["calibration"] for r in curves if r["flops"] == flops})
        found = [
            [r["accuracy"] for r in curves if (r["flops"], r["calibration"]) == (flops, n)] for n in amounts
        ]
        line = panel.errorbar(
            amounts,
            [mean(f) for f in found],
            [pstdev(f) for f in found],
            marker="o",
            capsize=2,
            label=f"{flops:.0%} FLOPs",
        )
        for r in rows:
            if (r["network"], r["method"], r["flops"]) == (network, "similarity-linear-free", flops):
                panel.axhline(r["accuracy"], linestyle="--", color=line[0].get_color())
    panel.set(xscale="log", xlabel="calibration images", title=network)
    ticks = sorted({r["calibration"] for r in curves})
    panel.set_xticks(ticks, [f"{n:,}" for n in ticks])
    panel.minorticks_off()
    panel.set_ylabel("PSNR (dB)" if network.endswith("denoise") else "accuracy (%)")
    panel.legend()


if __name__ == "__main__":
    main()
