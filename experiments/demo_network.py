"""Train the network that ships with the package: a narrow VGG-16 on CIFAR-10.

    python -m experiments.demo_network --data FOLDER --out runs/demo          # FOLDER holds cifar10.npz
    python -m experiments.demo_network --data FOLDER --out runs/demo --ship   # and put it into the package

A killed run is resumed. With ``--ship`` the weights (kernels in half precision), 1,000
test images, 256 training images, and ``network.json`` (command, seed, versions, hardware, and the accuracy
of the shipped weights on all 10,000 test images) go to ``src/slimilar/data/demo_assets``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

import slimilar
from experiments.progress import show_progress
from slimilar.data import Images, cifar, demo_images
from slimilar.data.demo import write_demo_images
from slimilar.models import VGG, demo_network
from slimilar.models.demo import WIDTH, write_demo_network
from slimilar.train import TrainingResult, TrainingSettings, evaluate, recipe, train
from slimilar.utils.atomic import write_text
from slimilar.utils.provenance import hardware, versions

SEED = 0
COMMAND = "python -m experiments.demo_network --data FOLDER --out runs/demo"
FIRST = replace(recipe("one-cycle"), epochs=14)
# Further cycles from there. (A constant rate of 0.03 with averaged weights, tried for two epochs, gave 87.8 %.)
SECOND = replace(FIRST, epochs=20, lr=0.08, warmup=0.1)
CYCLES = {"": FIRST, "more": SECOND, "third": replace(SECOND, epochs=12)}  # folder below --out: recipe


def ship(cycles: list[TrainingResult], images: Images, test: Images) -> None:
    folder = Path(slimilar.__file__).parent / "data" / "demo_assets"
    folder.mkdir(exist_ok=True)
    chosen = torch.cat([(test.labels == label).nonzero()[:100, 0] for label in range(10)]).sort().values
    some = replace(test, images=test.images[chosen], labels=test.labels[chosen])
    shown: dict[Literal["train", "test"], Images] = {"test": some, "train": images.first(256)}
    for split, part in shown.items():
        write_demo_images(folder, part, split)
    labels = {split: part.labels.tolist() for split, part in shown.items()}
    write_text(folder / "labels.json", json.dumps(labels) + "\n")
    write_demo_network(folder, cycles[-1].model)
    shipped = demo_network()
    score = evaluate(shipped, test)
    record = {
        "command": f"{COMMAND} --ship",
        "network": f"slimilar.models.VGG(classes=10, width={WIDTH})",
        "parameters": sum(p.numel() for p in shipped.parameters()),
        "data": "CIFAR-10 (Krizhevsky, 2009), all 50,000 training images",
        "recipes": [asdict(recipe) for recipe in CYCLES.values()],
        "seed": SEED,
        "test_accuracy": score.accuracy,
        "test_images": score.images,
        "test_accuracy_of_the_shipped_images": evaluate(shipped, demo_images()).accuracy,
        "history": [asdict(epoch) for part in cycles for epoch in part.history],
        "versions": versions(),
        "hardware": hardware(),
    }
    write_text(folder / "network.json", json.dumps(record, indent=1) + "\n")
    print(f"shipped: {score.accuracy:.2%} of {score.images} test images")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ship", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images, test = cifar("cifar10", "train", args.data), cifar("cifar10", "test", args.data)
    torch.manual_seed(SEED)
    settings = TrainingSettings(seed=SEED, save_every=100)
    model: nn.Module = VGG(10, WIDTH)
    results = []
    for name, cycle in CYCLES.items():
        results.append(
            train(
                model,
                images,
                cycle,
                test=test,
                folder=args.out / name,
                resume=True,
                progress=show_progress,
                settings=settings,
            )
        )
        model = results[-1].model
    if args.ship:
        ship(results, images, test)


if __name__ == "__main__":
    main()
