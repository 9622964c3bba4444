"""Accuracy without training: published checkpoints, unlabelled images, no fine-tuning, side by side.

    python benchmarks/accuracy.py --data FOLDER [--networks resnet20-cifar10,...] [--methods ours,...] [--seeds 0,1,2]

FOLDER holds the checkpoints, cifar10.npz and imagenet/; efficientnet_lite0.py fetches a network that nothing was tuned
on. Every choice of a setting is made with `--split held-out`: the last 5,000 training images of CIFAR-10, of which none
is ever used for calibration, or the second image of every class of ImageNet. Rows are appended to
benchmarks/results/accuracy.jsonl (accuracy-held-out.jsonl) as soon as they are known, and what is there already is
skipped; the table is the .md file beside it, made again by `--methods ""`. Three seeds of calibration images:
`--seeds 0,1,2`; the learning curve: `--methods auto --images 16,32,64,128,256,1024`, drawn by learning_curve.py.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path

import torch
from _accuracy.denoiser import psnr
from _accuracy.images import CALIBRATION, SPLITS, Task, load
from _accuracy.methods import METHODS
from _accuracy.table import note, rows, write_table
from _memory import growth
from torch import Tensor, nn
from torch.nn import functional

import slimilar

RESULTS = Path(__file__).parent / "results"
BUDGETS = {
    "resnet20-cifar10": (0.7, 0.5),
    "resnet56-cifar10": (0.7, 0.6, 0.5, 0.35),
    "resnet56-cifar100": (0.7, 0.5),
    "vgg16-cifar10": (0.7, 0.6, 0.5, 0.33),
    "resnet50-imagenet": (0.75, 0.58, 0.5),
    "mobilenetv2-imagenet": (0.85, 0.75, 0.6),
    "efficientnet-lite0-imagenet": (0.85, 0.75, 0.6),
    "dncnn-denoise": (0.7, 0.5),
}
OTHER = {("vgg16-cifar10", "synthesized"): (0.7, 0.47, 0.33), ("resnet56-cifar10", "synthesized"): (0.7, 0.5)}
READING = """
Command: `python benchmarks/accuracy.py --data FOLDER`; rows with seeds, versions and commits in the .jsonl file.
Accuracy in %, no fine-tuning, FLOPs of the whole network in the paper's convention, inner channels. `images` is the
number of images scored, `agreement` the share of them on which the pruned network answers as the original does.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(BUDGETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--flops", type=float, help="only this share of the FLOPs")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--count", type=int, default=10_000, help="images to score, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", default="0", help="of the calibration images, separated by commas")
    parser.add_argument("--images", default="", help="numbers of calibration images, other than the usual")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name = "accuracy" if args.split == "test" else f"accuracy-{args.split}"
    log = RESULTS / f"{name}.jsonl"
    methods = [m for m in args.methods.split(",") if m]
    amounts: list[int | None] = [int(n) for n in args.images.split(",") if n] or [None]
    for network, amount, seed in product(args.networks.split(","), amounts, map(int, args.seeds.split(","))):
        _run(args, network, methods, log, seed, amount)
    notes = RESULTS / f"{name}-notes.md"
    write_table(log, RESULTS / f"{name}.md", READING + (notes.read_text() if notes.exists() else ""))


def _run(
    args: argparse.Namespace, network: str, methods: list[str], log: Path, seed: int, amount: int | None
) -> None:
    """Score every method at every budget that is not known yet."""
    usual = CALIBRATION[network.rpartition("-")[2]]
    images = amount or usual
    known = {
        (r["network"], r["method"], r["flops"], r["seed"], r.get("calibration", usual)) for r in rows(log)
    }
    budgets = [(m, f) for m in methods for f in OTHER.get((network, m), BUDGETS[network])]
    wanted = [
        (m, f) for m, f in budgets if (network, m, f, seed, images) not in known and args.flops in (None, f)
    ]
    if not wanted:
        return
    task = load(network, args.data, args.split, args.count, seed, images)
    same = {"network": network, "seed": seed, "threads": args.threads, "split": args.split}
    before = outputs(task.model, task.x)
    if not any(k[:2] == (network, "before") for k in known):
        note(log, same | {"method": "before", "flops": 1.0, "flops_left": 1.0, "seconds": 0.0, "cpu": 0.0}
             | score(before, before, task.y))  # fmt: skip
    same["calibration"] = images
    for method, flops in wanted:
        grown, wall, cpu = growth(), time.perf_counter(), time.process_time()
        small = METHODS[method][2](task, flops)
        spent = {"seconds": round(time.perf_counter() - wall, 1), "cpu": round(time.process_time() - cpu, 1)}
        spent["peak_mib"] = round(grown())  # above what the process held: images, the network
        row = same | {"method": method, "flops": flops, "flops_left": _left(task, small)} | spent
        note(log, row | score(outputs(small, task.x), before, task.y))


def _left(task: Task, small: nn.Module) -> float:
    return round(
        slimilar.count(small, task.example).flops / slimilar.count(task.model, task.example).flops, 4
    )


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the class scores of all images."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(125)])


def score(given: Tensor, before: Tensor, y: Tensor) -> dict[str, float]:
    """Return accuracy (of a denoiser PSNR in dB), agreement with the original in %, and the divergence from it."""
    if y.is_floating_point():
        gap = (given - before).square().sum() / before.square().sum()
        return {
            "accuracy": round(psnr(given, y), 3), "agreement": round(100 * float(1 - gap), 2),
            "divergence": round(float(gap), 4), "images": len(y),
        }  # fmt: skip
    kl = functional.kl_div(
        given.log_softmax(1), before.log_softmax(1), log_target=True, reduction="batchmean"
    )
    right, same = (given.argmax(1) == y).float().mean(), (given.argmax(1) == before.argmax(1)).float().mean()
    return {
        "accuracy": round(100 * float(right), 2), "agreement": round(100 * float(same), 2),
        "divergence": round(float(kl), 4), "images": len(y),
    }  # fmt: skip


if __name__ == "__main__":
    main()
