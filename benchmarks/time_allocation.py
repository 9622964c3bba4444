"""Accuracy at equal measured time: channels removed by FLOPs against channels removed by milliseconds.

    python benchmarks/time_allocation.py --data FOLDER --networks mobilenetv2-imagenet

One plan (criterion span on calibration images) is cut twice to the same share of the original's time, measured in ONNX
Runtime on one thread: once with FLOPs as the prediction of time, once with tables of layer times. Both cuts are
reconstructed on the same images and scored on others, right after pruning.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import Task, load
from _results import RESULTS, opened
from accuracy import outputs, score

import slimilar
from slimilar.deploy.latency import cut_for_latency, timer
from slimilar.deploy.runtimes import Runtime
from slimilar.planning.cut import Cut
from slimilar.planning.latency import MeasuredLatency, cut_within_latency
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

LOG = RESULTS / "time_allocation.jsonl"
RUNTIME = Runtime("onnxruntime", threads=1)
WAYS = ("FLOPs", "milliseconds")


def cut_of(task: Task, plan: Plan, share: float, way: str) -> tuple[Cut, MeasuredLatency]:
    """Return the cut within a share of the original's time."""
    target = PruningTarget("latency", share)
    if way == "milliseconds":
        return cut_for_latency(task.model, task.example, plan, target, RUNTIME)
    with RUNTIME.thread_count():
        timed = timer(task.model, task.example, plan.structure, runtime=RUNTIME)
        return cut_within_latency(plan, target, timed)


def row(task: Task, plan: Plan, share: float, way: str, before: torch.Tensor) -> dict[str, Any]:
    """Return what a way of allocating leaves of the accuracy."""
    cut, measured = cut_of(task, plan, share, way)
    small = slimilar.apply(
        task.model, task.example, plan, cut, calibration=task.calibration, verify=False
    ).model
    return {
        "time": measured.ratio.value, "flops": cut.flops / plan.before.flops, "round_to": cut.round_to,
        **score(outputs(small.eval(), task.x), before, task.y),
    }  # fmt: skip


def table(rows: RowLedger) -> str:
    """Return all rows as markdown."""
    head = [
        "# Accuracy at equal measured time",
        "",
        "`python benchmarks/time_allocation.py --data FOLDER`, seed 0. ONNX Runtime, one thread, no fine-tuning.",
        "",
        "| network | time asked for | channels removed by | time measured | FLOPs left | accuracy | images |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [
        f"| {r['network']} | {r['share']:.0%} | {r['way']} | {100 * r['time']:.1f} % | {100 * r['flops']:.1f} % | "
        f"{r['accuracy']:.2f} % | {r['images']} |"
        for r in rows.all()
    ]
    return "\n".join([*head, *lines]) + "\n"


def main() -> None:
    """Prune, measure, score, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default="mobilenetv2-imagenet,resnet50-imagenet")
    parser.add_argument("--shares", default="0.75,0.6")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--count", type=int, default=500)
    args = parser.parse_args()
    rows = opened(LOG, "benchmarks")
    for name in args.networks.split(","):
        task = load(name, args.data, "test", args.count, 0, args.images)
        before = outputs(task.model, task.x)
        plan = slimilar.analyze(task.model, task.example, criterion="span", calibration=task.calibration)
        for share in map(float, args.shares.split(",")):
            for way in WAYS:
                key = {"network": name, "share": share, "way": way, "seed": 0}
                rows.row(key, partial(row, task, plan, share, way, before))
                write_text(LOG.with_suffix(".md"), table(rows))


if __name__ == "__main__":
    main()
