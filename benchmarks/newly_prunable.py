"""Which channels of the zoo can leave now and could not at an earlier commit: filters of all layers, counted.

    git worktree add ../before 875af9c
    python benchmarks/newly_prunable.py --before ../before          # resumes; rows in results/newly_prunable.jsonl
    python benchmarks/newly_prunable.py --before ../before --minutes 20 --only vit

Both versions analyse the same architectures (one of each kind, smallest first), as shapes, residual streams included.
What is counted are rows of weights with two axes or more: the filters of convolutions, linear and recurrent layers. A
filter that is newly prunable is listed under the reason for which it stayed before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _results import RESULTS, header, stamp
from _zoo.catalogue import Architecture, catalogue, chosen, without_norms

from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

_HERE = Path(__file__).parent


class Version:
    """A process that analyses architectures with one version of the package."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.process: subprocess.Popen[str] | None = None

    def ask(self, entry: Architecture) -> dict[str, Any]:
        """Return what the version says about an architecture."""
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(entry)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.process = None
        return dict(json.loads(line)) if line else {"error": "the process ended"}

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.source / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(_HERE / "_zoo" / "filters.py")], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self.process

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def compared(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an architecture: filters, those that may leave, and the new ones by what kept them before.

    >>> old = {"filters": {"a": 8, "b": 4}, "free": {"a": 8}, "frozen": {"b": "mixed"}}
    >>> compared(old, old | {"free": {"a": 8, "b": 4}})
    {'filters': 12, 'before': 8, 'after': 12, 'new': {'mixed': 4}, 'lost': 0}
    """
    problem = before.get("error") or after.get("error")
    if problem:
        return {"error": problem}
    new: Counter[str] = Counter()
    lost = 0
    for module in after["filters"]:
        gain = after["free"].get(module, 0) - before["free"].get(module, 0)
        if gain > 0:
            new[before["frozen"].get(module, "joined to others that stayed")] += gain
        lost -= min(gain, 0)
    totals = (sum(values.values()) for values in (after["filters"], before["free"], after["free"]))
    return {**dict(zip(("filters", "before", "after"), totals, strict=True)), "new": dict(new), "lost": lost}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the totals, the new filters by reason, and the architectures that gained."""
    good = [r for r in rows if "filters" in r]
    total = sum(r["filters"] for r in good) or 1
    new: Counter[str] = Counter()
    for row in good:
        new.update(row["new"])
    lines = [
        f"{len(rows)} architectures, {len(rows) - len(good)} that one of the versions does not analyse",
        f"filters {total:,}; prunable before {_share(good, 'before', total)}, now {_share(good, 'after', total)}",
        f"newly prunable {new.total() / total:.2%}, no longer prunable {_share(good, 'lost', total)}",
        "newly prunable, by the reason for which they stayed before:",
        *(f"  {count / total:7.2%}  {reason}" for reason, count in new.most_common(15)),
        "architectures:",
    ]
    gained = sorted((r for r in good if r["new"] or r["lost"]), key=lambda r: r["before"] - r["after"])
    for r in gained:
        share = f"{r['before'] / r['filters']:6.1%} -> {r['after'] / r['filters']:6.1%}"
        lines.append(f"  {r['model']:<44} {share}" + (f"  lost {r['lost']}" if r["lost"] else ""))
    lines += [f"  {r['model']:<44} {r['error'][:100]}" for r in rows if "error" in r]
    return "\n".join(lines)


def _share(rows: list[dict[str, Any]], name: str, total: int) -> str:
    return f"{sum(row[name] for row in rows) / total:.2%}"


def main() -> None:
    """Compare what has no row yet, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, help="a checkout of the earlier commit; without it, the table only"
    )
    parser.add_argument("--only", default="", help="names that contain this word")
    parser.add_argument("--minutes", type=float, default=600, help="stop after so many, by the clock")
    options = parser.parse_args()
    ledger = RowLedger(RESULTS / "newly_prunable.jsonl", stamp=stamp("benchmarks/_zoo"))
    if options.before:
        entries = catalogue(RESULTS / "zoo-catalogue.json")
        picked = [*chosen(entries, everything=False), *without_norms(entries)]
        picked = sorted((e for e in picked if options.only in e.key), key=lambda e: e.params)
        versions = [Version(options.before.resolve()), Version(_HERE.parent)]
        end = time.monotonic() + 60 * options.minutes
        try:
            for entry in picked:
                if time.monotonic() < end and ledger.find(model=entry.key) is None:
                    ledger.append({"model": entry.key, **compared(*(v.ask(entry) for v in versions))})
        finally:
            for version in versions:
                version.stop()
    command = "python benchmarks/newly_prunable.py --before CHECKOUT_OF_875af9c"
    newest = list({row["model"]: row for row in ledger.rows}.values())
    text = f"{header(command, 0)}\n{table(newest)}\n"
    write_text(RESULTS / "newly_prunable.txt", text)
    print(text, end="")


if __name__ == "__main__":
    main()
