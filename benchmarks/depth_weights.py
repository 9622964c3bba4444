"""Does it pay to weight layers by depth in the allocation, and do quick fits see it? On images that nothing else sees.

    python benchmarks/depth_weights.py --data FOLDER [--networks mobilenetv2-imagenet=0.75,...] [--exponents 0,1,...]

One scan for each network; then for each exponent t a plan at the same share of the FLOPs in which the measured loss of
a layer counts e^(t (x - 1/2)) times (x is 0 at the first and 1 at the last layer). `quick` is the divergence by which
prune() chooses: quick fits to three quarters of some calibration images, measured on the others. The rest is of the
real fit, on held-out images: 1,000 of ImageNet, 5,000 training images of CIFAR-10. Rows are appended to
benchmarks/results/depth_weights.jsonl as soon as they are known; the table is the .md file beside it.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import Task, load
from _results import RESULTS, opened
from accuracy import outputs, score

import slimilar
from slimilar.calibration.calibration_set import CalibrationSet, calibration_set
from slimilar.calibration.program import program_for
from slimilar.pipeline.candidates import Candidate, HeldOutImages, search_images
from slimilar.pipeline.depth_weights import weighted_by_depth
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.reconstruction.apply import bias_cost, reconstructed_model, settings_for
from slimilar.utils.atomic import write_text

NETWORKS = "mobilenetv2-imagenet=0.75,resnet20-cifar10=0.5,vgg16-cifar10=0.5,vgg16-cifar10=0.33"
EXPONENTS = "0,1,2,3,-1,-2"
SEED, HELD_OUT = 0, 5_000
_READING = """# Weighting layers by depth

Command: `python benchmarks/depth_weights.py --data FOLDER`; versions and commits in the .jsonl file. Seed 0, no
fine-tuning. The measured loss of each layer counts e^(t (x - 1/2)) times, x from 0 at the first to 1 at the last layer;
all plans of a block have the same FLOPs. `quick`: the divergence by which `prune()` chooses t, on a quarter of so many
calibration images. The rest: the real fit, on held-out images (1,000 of ImageNet; 5,000 training images of CIFAR-10,
which the checkpoints have seen in training: look at the divergence).

| network | FLOPs left | t | quick | images | divergence | agreement, % | accuracy, % |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=NETWORKS, help="NAME=SHARE of the FLOPs, by comma")
    parser.add_argument("--exponents", default=EXPONENTS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ledger = opened(RESULTS / "depth_weights.jsonl", "benchmarks/_accuracy", "benchmarks/depth_weights.py")
    for item in filter(None, args.networks.split(",")):
        name, _, share = item.partition("=")
        exponents = [float(t) for t in args.exponents.split(",")]
        keys = [
            {"network": name, "flops": float(share), "exponent": t, "seed": SEED, "threads": args.threads}
            for t in exponents
        ]
        if any(ledger.find(**key) is None for key in keys):
            task = load(name, args.data, "held-out", HELD_OUT, SEED)
            plan = slimilar.analyze(
                task.model, task.example, criterion="span", calibration=task.calibration, seed=SEED
            )
            for key in keys:
                ledger.row(key, partial(_compared, task, plan, key["flops"], key["exponent"]))
    write_text(RESULTS / "depth_weights.md", _table(ledger.rows))


def _compared(task: Task, plan: Plan, flops: float, exponent: float) -> dict[str, Any]:
    """Return what the search sees of an exponent, and what the real fit makes of it."""
    images = calibration_set(task.calibration, None, task.example, seed=SEED)
    images = program_for(task.model, task.example, plan.structure, images)[1]
    weighted = weighted_by_depth(plan, exponent)
    reserve = bias_cost(task.model, task.example, plan, "flops")
    cut = weighted.cut(PruningTarget("flops", flops, 1, reserve=reserve))
    quick, looked = _quick(task, Candidate("span", weighted, cut), images)
    start, settings = time.process_time(), settings_for(plan, len(images), SEED)
    made = reconstructed_model(
        task.model, task.example, weighted, cut, "linear", images, SEED, None, settings
    )
    cpu = round(time.process_time() - start, 1)
    found = score(outputs(made.model.eval(), task.x), outputs(task.model, task.x), task.y)
    return found | {"quick": quick, "looked at": looked, "cpu": cpu}


def _quick(task: Task, candidate: Candidate, images: CalibrationSet) -> tuple[float, int]:
    many = search_images(candidate.plan, len(images))
    gaps = HeldOutImages.of(task.model, task.example, images, many).gaps(candidate)
    return round(float(gaps.mean()), 4), many


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [_READING]
    lines += [
        f"| {r['network']} | {r['flops']:.0%} | {r['exponent']:g} | {r['quick']:.4f} | {r['looked at']:,} | "
        f"{r['divergence']:.4f} | {r['agreement']:.2f} | {r['accuracy']:.2f} |"
        for r in sorted(rows, key=lambda r: (r["network"], -r["flops"], r["exponent"]))
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
