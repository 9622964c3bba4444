"""Does every criterion reach a budget of FLOPs within 1 %? Published networks, what was asked and what came out.

    python benchmarks/budgets.py --data FOLDER [--networks vgg16-cifar10,...] [--criteria all] [--images 8]

FOLDER holds the checkpoints, cifar10.npz and imagenet/. Each network is pruned for good (`substitute="none"`) and its
FLOPs are counted again in the smaller network. Rows are appended to benchmarks/results/budgets.jsonl as soon as they
are known, and what is there already is skipped; the table is budgets.md beside it.

How good the choice is does not matter here, so there are few images, `span` measures with little effort, and methods
with a training phase go by the published weights.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from _results import RESULTS, opened

import slimilar
from slimilar.criteria import Span, available, make
from slimilar.data import cifar, image_folder
from slimilar.models import pretrained
from slimilar.pipeline import apply
from slimilar.utils.atomic import write_text

NETWORKS = {"vgg16-cifar10": "VGG-16", "resnet56-cifar10": "ResNet-56", "resnet50-imagenet": "ResNet-50"}
BUDGETS = (0.7, 0.5)
EFFORT = 1e9
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--criteria", default="all")
    parser.add_argument("--images", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ledger = opened(RESULTS / "budgets.jsonl")
    names = available() if args.criteria == "all" else args.criteria.split(",")
    for network in args.networks.split(","):
        new = [name for name in names if ledger.find(network=network, criterion=name) is None]
        for row in reach(args, network, new):
            ledger.append(row)
            write_text(RESULTS / "budgets.md", table(ledger.rows))


def reach(args: argparse.Namespace, network: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield for every criterion the share of the FLOPs that the network has after each budget."""
    if not names:
        return
    found = pretrained(network, args.data)
    data = image_folder(args.data / "imagenet") if "imagenet" in network else cifar("cifar10", path=args.data)
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))[: args.images]
    images, labels = data.normalised(found.normalisation).batch(chosen)
    example = images[:1].contiguous()
    before = slimilar.count(found.model, example).flops
    for name in names:
        criterion = Span(effort=EFFORT) if name == "span" else make(name, trained=True)
        plan = slimilar.analyze(found.model, example, criterion=criterion, calibration=images, labels=labels)
        shares = {}
        for budget in BUDGETS:
            small = apply(
                found.model,
                example,
                plan,
                plan.at(flops=budget, round_to=1),
                reconstruction="none",
                verify=False,
            ).model
            shares[str(budget)] = slimilar.count(small, example).flops / before
        yield {
            "network": network, "criterion": name, "reached": shares, "images": len(images), "seed": SEED,
            "numpy": numpy.__version__, "python": platform.python_version(),
        }  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """Return the shares that were reached, in %: a line for each criterion, a column for each network and budget."""
    columns = [(network, str(budget)) for network in NETWORKS for budget in BUDGETS]
    shares = {(r["network"], b, r["criterion"]): s for r in found for b, s in r["reached"].items()}
    head = [
        "criterion",
        *(f"{NETWORKS[network]}, {100 * float(budget):.0f} %" for network, budget in columns),
    ]
    lines = [head, ["---", *["---:"] * len(columns)]]
    for name in dict.fromkeys(r["criterion"] for r in found):
        cells = [shares.get((network, budget, name)) for network, budget in columns]
        lines.append([name, *("" if cell is None else f"{100 * cell:.2f}" for cell in cells)])
    drawn = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(["# Budgets, asked and reached", "", _about(found, shares), "", *drawn]) + "\n"


def _about(found: list[dict[str, Any]], shares: dict[tuple[str, str, str], float]) -> str:
    missed = [key for key, s in shares.items() if not float(key[1]) - 0.01 <= s <= float(key[1])]
    told = ", ".join(f"{c} on {NETWORKS[n]} at {b}" for n, b, c in missed)
    made = {f"torch {r['torch']}, numpy {r['numpy']}, python {r['python']}" for r in found}
    images = ", ".join(map(str, sorted({r["images"] for r in found})))
    return (
        "Command: `python benchmarks/budgets.py --data FOLDER`. FLOPs of the smaller network, counted again, in % of "
        f"those of the published one, in the paper's convention. {len(shares)} cuts, of which {len(missed)} miss: are "
        f"above what was asked, or more than 1 % of the network below it{f' ({told})' if missed else ''}.\n\n"
        f"Seed {SEED}, {images} images (CIFAR-10: for training, ImageNet: for validation), `span` with an effort "
        f"of {EFFORT:g}; slimming, structured-sparsity and soft go by the published weights. Made by slimilar "
        f"{found[0]['slimilar']}, {'; '.join(sorted(made))}."
    )


if __name__ == "__main__":
    main()
