"""Prune, then quantise: accuracy, time and size in float32 and int8, of the whole network and of the pruned one.

    python benchmarks/int8.py --data FOLDER [--networks mobilenetv2-imagenet,vgg16-cifar10]

Pruned by criterion span and reconstructed by least squares on calibration images, no fine-tuning. The same images
calibrate int8 (ONNX Runtime, static, per channel), with ranges and bias correction as `slimilar export --int8` chooses
them on half of these images, and as a reference by min-max, the default of ONNX Runtime. Scored on other images.
Time is that of one image in ONNX Runtime on one thread: the six files take turns in one process. Rows that are
already in the file are not made again. `--files FOLDER` keeps the float files, and takes those that are there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import Task, load
from _results import RESULTS, opened
from accuracy import outputs
from torch import Tensor

import slimilar
from slimilar.deploy.latency import measure
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.quantization import OnnxSession, quantise
from slimilar.utils.atomic import write_text
from slimilar.utils.provenance import header
from slimilar.utils.row_ledger import RowLedger

LOG = RESULTS / "int8.jsonl"
FLOPS = {"mobilenetv2-imagenet": 0.75, "vgg16-cifar10": 0.5, "resnet56-cifar10": 0.7}
SEED = 0


def float_files(task: Task, folder: Path) -> tuple[dict[str, Path], float]:
    """Return the files of the whole and the pruned network, and the share of FLOPs that is left."""
    files = {name: folder / f"{task.name}-{name}.onnx" for name in ("whole", "pruned")}
    known = folder / f"{task.name}.json"
    if not known.exists():
        pruned = slimilar.prune(
            task.model, task.example, flops=FLOPS[task.name], criterion="span", calibration=task.calibration,
            verify=False,
        )  # fmt: skip
        for name, model in (("whole", task.model), ("pruned", pruned.model)):
            export_onnx(model, files[name], task.example)
        write_text(known, json.dumps(pruned.cut.flops / pruned.cut.before.flops))
    return files, json.loads(known.read_text())


def int8_files(task: Task, files: dict[str, Path], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Write every file in int8, in two ways; return all files, and the setting that was chosen for each."""
    found, chosen = {}, {}
    for name, plain in files.items():
        names = {"min-max": f"{name} int8, min-max", "auto": f"{name} int8"}
        found[f"{name} float"] = plain
        for ranges, title in names.items():
            found[title] = folder / f"{name}-{ranges}.onnx"
            done = quantise(plain, found[title], task.calibration, ranges=ranges, seconds=0.1)
        chosen[name] = str(done.setting)
    return found, chosen


def row(network: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured of the six files of a network."""
    task = load(network, args.data, "test", args.count, SEED, args.images)
    with tempfile.TemporaryDirectory() as folder:
        plain, flops = float_files(task, args.files or Path(folder))
        files, chosen = int8_files(task, plain, Path(folder))
        sessions = {name: OnnxSession(file) for name, file in files.items()}
        sizes = {name: file.stat().st_size for name, file in files.items()}
    timings = measure({n: partial(s, task.example) for n, s in sessions.items()}, seconds=args.seconds)
    scores = {name: outputs(session, task.x).argmax(1) for name, session in sessions.items()}
    return {
        "images": len(task.y), "calibration": len(task.calibration), "flops": flops, "bytes": sizes,
        "accuracy": {n: _share(task.y, score) for n, score in scores.items()}, "chosen": chosen,
        "agreement": {n: _share(scores[f"{n.split()[0]} float"], score) for n, score in scores.items()},
        "ms": {n: timings.milliseconds(n).value for n in sessions},
        "int8_time": timings.ratio("pruned int8", "pruned float").value,
    }  # fmt: skip


def _share(wanted: Tensor, given: Tensor) -> float:
    return 100 * float((wanted == given).double().mean())


INTRO = """# Prune, then quantise

`python benchmarks/int8.py --data FOLDER`, seed 0, {hardware}. ONNX Runtime, one thread, one image, files in turn; no
fine-tuning. int8: ranges of activations and bias correction are chosen on half of the calibration images; min-max:
the default of ONNX Runtime. Same answer: share of the images with the same answer as the float file. Goal: int8 of a
pruned network faster than the pruned network, at most 1 point lost. On a machine with other work, only the ratio of two
times of a network counts.

| network | FLOPs left | file | size | time | accuracy | same answer | images | goal |
|---|---|---|---|---|---|---|---|---|
"""


def table(rows: RowLedger) -> str:
    """Return all rows as markdown."""
    lines = []
    for r in rows.all():
        lost = round(r["accuracy"]["pruned float"] - r["accuracy"]["pruned int8"], 6)
        met = "met" if r["int8_time"] < 1 and lost <= 1 else "missed"
        for name in r["ms"]:
            share = r["flops"] if name.startswith("pruned") else 1.0
            goal = met if name == "pruned int8" else ""
            title = f"{name}: {r['chosen'][name.split()[0]]}" if name.endswith("int8") else name
            cells = [
                r["network"], f"{100 * share:.1f} %", title, f"{r['bytes'][name] / 1e6:.2f} MB",
                f"{r['ms'][name]:.2f} ms", f"{r['accuracy'][name]:.1f} %",
                f"{r['agreement'][name]:.1f} %", str(r["images"]), goal,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    hardware = header("python benchmarks/int8.py", SEED, None)["hardware"]
    return INTRO.format(hardware=hardware) + "\n".join(lines) + "\n"


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
    parser.add_argument("--files", type=Path, help="where float files are kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = opened(LOG, "benchmarks")
    for network in args.networks.split(","):
        rows.row({"network": network, "seed": SEED}, partial(row, network, args))
        write_text(LOG.with_suffix(".md"), table(rows))


if __name__ == "__main__":
    main()
