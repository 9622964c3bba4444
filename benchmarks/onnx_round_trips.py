"""Torchvision's classifiers through ONNX and back: exported, read by Slimilar, pruned to 80 % of FLOPs, written, run.

    python benchmarks/onnx_round_trips.py [--only NAME]      # resumes; about an hour of one core

Weights are random: this is about operators. Rows go to benchmarks/results/onnx-round-trips.jsonl, the counts to
benchmarks/results/onnx-round-trips.md. A network that is pruned agrees with PyTorch in ONNX Runtime to a thousandth of
the largest score.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import onnxruntime
from _onnx.round_trip import names, network, round_trip
from _results import RESULTS, opened

from slimilar.utils import provenance
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

ABOUT = "Random weights, pruned to 80 % of FLOPs by filter magnitude."


def main() -> None:
    """Try the networks one by one, the smallest first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="networks whose name holds this")
    options = parser.parse_args()
    ledger = opened(RESULTS / "onnx-round-trips.jsonl", "benchmarks/onnx_round_trips.py", "benchmarks/_onnx")
    every = names()
    for name in every:
        if options.only in name:
            with tempfile.TemporaryDirectory() as folder:
                ledger.row({"network": name}, partial(_tried, name, Path(folder)))
            write_text(RESULTS / "onnx-round-trips.md", table(ledger, every))


def _tried(name: str, folder: Path) -> dict[str, str]:
    outcome, _, reason = round_trip(*network(name), folder).partition(": ")
    return {"outcome": outcome, "reason": reason.replace(str(folder), "FOLDER")}


def table(ledger: RowLedger, every: list[str]) -> str:
    """Return the counts, and every network that was not pruned, with the reason."""
    counts = Counter(row["outcome"] for row in ledger.rows)
    others = [row for row in ledger.rows if row["outcome"] != "pruned"]
    tried = {row["network"] for row in ledger.rows}
    left = [name for name in every if name not in tried]
    used = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in ledger.rows))
    lines = [
        "# Torchvision's classifiers through ONNX and back",
        "",
        "    python benchmarks/onnx_round_trips.py",
        "",
        f"{used}, onnxruntime {onnxruntime.__version__}; {provenance.hardware()}. Made by commit {commits}.",
        "",
        f"{len(tried)} of {len(every)} networks tried. {ABOUT}",
        "",
        "| outcome | networks |",
        "|---|---|",
        *(f"| {outcome} | {count} |" for outcome, count in counts.most_common()),
        "",
        *(
            f"- {row['network']}: {row['outcome']}{': ' if row['reason'] else ''}{row['reason']}"
            for row in others
        ),
        *([f"- not tried yet: {', '.join(left)}"] if left else []),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
