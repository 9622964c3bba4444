"""A short fine-tuning after pruning: from a fitted network and from plain removal, at equal cost, by the same recipe.

    python benchmarks/finetune.py --data FOLDER [--starts ours,none] [--teacher yes,no] [--runs runs/finetune]

VGG-16 on CIFAR-10 at a third of its FLOPs, where the paper fine-tunes for 60 epochs and loses 0.7 points. The recipe is
`quick` (three epochs, one cycle to 0.01, gradients clipped, crop and flip); a teacher is the network before pruning. It
trains on the 45,000 training images out of which 1,024 have calibrated the fit; recipes were chosen on the others. A
run that is stopped is resumed; rows are appended to benchmarks/results/finetune.jsonl, the table is finetune.md.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import FIT, Task, load
from _accuracy.methods import METHODS
from _results import RESULTS, opened
from torch import nn

import slimilar
from slimilar.data import Images, cifar
from slimilar.models.checkpoints import Pretrained, pretrained
from slimilar.train import TrainingSettings, evaluate, finetune, recipe
from slimilar.utils.atomic import write_text

WORDS = {"ours": "chosen by span and fitted", "none": "plain removal by similarity (the paper)"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", default="vgg16-cifar10")
    parser.add_argument("--flops", type=float, default=0.33)
    parser.add_argument("--starts", default="ours,none", help="which networks to start from")
    parser.add_argument("--teacher", default="yes,no")
    parser.add_argument("--runs", type=Path, default=Path("runs/finetune"), help="where runs are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ledger = opened(RESULTS / "finetune.jsonl", "benchmarks/_accuracy")
    found = pretrained(args.network, args.data)
    for start in args.starts.split(","):
        for taught in args.teacher.split(","):
            same = {
                "network": args.network,
                "flops": args.flops,
                "start": start,
                "teacher": taught == "yes",
                "seed": args.seed,
            }
            ledger.row(same, partial(_tuned, args, found, start, taught == "yes"))
    write_text(RESULTS / "finetune.md", _table(ledger.rows))


def _tuned(args: argparse.Namespace, found: Pretrained, start: str, taught: bool) -> dict[str, Any]:
    """Prune, fine-tune, score on all test images."""
    train, test = (
        cifar(found.dataset, split, args.data).normalised(found.normalisation) for split in ("train", "test")
    )
    small = _small(args, start)
    folder = args.runs / f"{args.network}-{args.flops}-{start}-{'taught' if taught else 'alone'}-{args.seed}"
    began, cpu = time.perf_counter(), time.process_time()
    result = finetune(
        small, train.first(FIT), recipe("quick"), test=test, teacher=found.model if taught else None, folder=folder,
        resume=True, settings=TrainingSettings(seed=args.seed),
    )  # fmt: skip
    return {
        "before": _percent(found.model, test),
        "pruned": round(100 * (result.start_accuracy or 0), 2),
        "epochs": [round(100 * (r.test_accuracy or 0), 2) for r in result.history],
        "seconds": round(time.perf_counter() - began),
        "cpu": round(time.process_time() - cpu),
        "threads": args.threads,
        "training images": FIT,
        "test images": len(test),
    }


def _small(args: argparse.Namespace, start: str) -> nn.Module:
    """Return the pruned network; made once, and kept beside the runs."""
    file = args.runs / f"{args.network}-{args.flops}-{start}-{args.seed}.safetensors"
    fresh = pretrained(args.network, args.data).model
    if not file.exists():
        task: Task = load(args.network, args.data, "held-out", 1, args.seed)
        made = METHODS[start][2](task, args.flops)
        slimilar.save(made, file)
    return slimilar.load(file, fresh)


def _percent(model: nn.Module, test: Images) -> float:
    return round(100 * evaluate(model, test).accuracy, 2)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A short fine-tuning after pruning",
        "",
        "Command: `python benchmarks/finetune.py --data FOLDER`; seeds, versions and commits in the .jsonl file.",
        "Accuracy in % on all 10,000 test images. Recipe `quick`: three epochs of 45,000 images, one cycle to a",
        "rate of 0.01, batches of 64, gradients clipped to a norm of 1, crop and flip. One seed. The paper loses",
        "0.7 points at this cut, after 60 epochs.",
        "",
        "| network | FLOPs left | start | teacher | before | pruned | after 1 | 2 | 3 epochs | lost | CPU minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: -r["epochs"][-1]):
        epochs = " | ".join(f"{e:.2f}" for e in r["epochs"])
        lines.append(
            f"| {r['network']} | {r['flops']:.0%} | {WORDS[r['start']]} | {'yes' if r['teacher'] else 'no'} | "
            f"{r['before']:.2f} | {r['pruned']:.2f} | {epochs} | {r['before'] - r['epochs'][-1]:.2f} | "
            f"{r['cpu'] / 60:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
