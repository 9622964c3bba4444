"""Prune, then quantise: accuracy, time and size in float32 and int8, of the whole network and of the pruned one.

    python benchmarks/int8.py --data FOLDER [--networks mobilenetv2-imagenet,vgg16-cifar10]

Pruned by criterion span and reconstructed by least squares on calibration images, no fine-tuning. The same images
calibrate int8 (ONNX Runtime, static, per channel). Scored on other images. Time is that of one image in ONNX Runtime on
one thread: the four files take turns in one process. Rows that are already in the file are not made again.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import Task, load
from _results import RESULTS, opened
from accuracy import outputs
from torch import nn

import slimilar
from slimilar.deploy.latency import measure
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.quantization import OnnxSession, quantise
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

LOG = RESULTS / "int8.jsonl"
FLOPS = {"mobilenetv2-imagenet": 0.75, "vgg16-cifar10": 0.5, "resnet56-cifar10": 0.7}
SEED = 0


def files_of(task: Task, models: dict[str, nn.Module], folder: Path) -> dict[str, Path]:
    """Write every model in float32 and int8."""
    found: dict[str, Path] = {}
    for name, model in models.items():
        plain, small = folder / f"{name}.onnx", folder / f"{name}-int8.onnx"
        export_onnx(model, plain, task.example)
        quantise(plain, small, task.calibration, seconds=0.1)
        found |= {f"{name} float": plain, f"{name} int8": small}
    return found


def row(network: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured of the four files of a network."""
    task = load(network, args.data, "test", args.count, SEED, args.images)
    pruned = slimilar.prune(
        task.model, task.example, flops=FLOPS[network], criterion="span", calibration=task.calibration, verify=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(task, {"whole": task.model, "pruned": pruned.model}, Path(folder))
        sessions = {name: OnnxSession(file) for name, file in files.items()}
        sizes = {name: file.stat().st_size for name, file in files.items()}
    timings = measure({n: partial(s, task.example) for n, s in sessions.items()}, seconds=args.seconds)
    accuracy = {n: _accuracy(task, session) for n, session in sessions.items()}
    return {
        "images": len(task.y), "calibration": len(task.calibration),
        "flops": pruned.cut.flops / pruned.cut.before.flops, "bytes": sizes, "accuracy": accuracy,
        "ms": {n: timings.milliseconds(n).value for n in sessions},
        "int8_time": timings.ratio("pruned int8", "pruned float").value,
    }  # fmt: skip


def _accuracy(task: Task, session: OnnxSession) -> float:
    return 100 * float((outputs(session, task.x).argmax(1) == task.y).float().mean())


INTRO = """# Prune, then quantise

`python benchmarks/int8.py --data FOLDER`, seed 0. ONNX Runtime, one thread, one image, four files in turn; no
fine-tuning. Goal: int8 of a pruned network faster than the pruned network, at most 1 point lost.

| network | FLOPs left | file | size | time | accuracy | images | goal |
|---|---|---|---|---|---|---|---|
"""


def table(rows: RowLedger) -> str:
    """Return all rows as markdown."""
    lines = []
    for r in rows.all():
        lost = r["accuracy"]["pruned float"] - r["accuracy"]["pruned int8"]
        met = "met" if r["int8_time"] < 1 and lost <= 1 else "missed"
        for name in r["ms"]:
            share = r["flops"] if name.startswith("pruned") else 1.0
            goal = met if name == "pruned int8" else ""
            cells = [
                r["network"], f"{100 * share:.1f} %", name, f"{r['bytes'][name] / 1e6:.2f} MB",
                f"{r['ms'][name]:.2f} ms", f"{r['accuracy'][name]:.2f} %", str(r["images"]), goal,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return INTRO + "\n".join(lines) + "\n"


def main() -> None:
    """Prune, quantise, measure, score, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(FLOPS))
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = opened(LOG, "benchmarks")
    for network in args.networks.split(","):
        rows.row({"network": network, "seed": SEED}, partial(row, network, args))
        write_text(LOG.with_suffix(".md"), table(rows))


if __name__ == "__main__":
    main()
