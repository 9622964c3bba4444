"""Train the network that ships with the package: a narrow VGG-16 on CIFAR-10.

    python experiments/demo_network.py --data FOLDER --out runs/demo     # FOLDER holds cifar10.npz

A killed run goes on where it was when started again. At the end ``OUT/demo.json`` holds the command, the
seed, the versions, the hardware, and the accuracy on all 10,000 test pictures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch

import slimilar
from slimilar.data import cifar
from slimilar.models import build
from slimilar.train import Progress, Settings, evaluate, recipe, train

NETWORK, WIDTH, EPOCHS, SEED = "vgg16", 0.375, 14, 0


def show(event: Progress) -> None:
    line = f"epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f}"
    line += f" accuracy {event.accuracy:.4f} {event.pictures_per_second:.0f} pictures/s"
    if event.test_accuracy is not None:
        line += f" | test {event.test_accuracy:.4f}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(2)
    pictures, test = cifar("cifar10", "train", args.data), cifar("cifar10", "test", args.data)
    torch.manual_seed(SEED)
    chosen = dataclasses.replace(recipe("one-cycle"), epochs=EPOCHS)
    settings = Settings(seed=SEED, save_every=100)
    began = time.time()
    result = train(
        build(NETWORK, 10, WIDTH), pictures, chosen,
        test=test, folder=args.out, resume=True, settings=settings, progress=show,
    )  # fmt: skip
    score = evaluate(result.model, test)
    record = {
        "command": "python experiments/demo_network.py --data FOLDER --out runs/demo",
        "network": NETWORK,
        "width": WIDTH,
        "parameters": sum(p.numel() for p in result.model.parameters()),
        "recipe": dataclasses.asdict(chosen),
        "seed": SEED,
        "test accuracy": score.accuracy,
        "test pictures": score.pictures,
        "test loss": score.loss,
        "history": [dataclasses.asdict(epoch) for epoch in result.history],
        "seconds since the last start": round(time.time() - began),
        "versions": {
            "slimilar": slimilar.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()}), shared; no accelerator",
    }
    (args.out / "demo.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({"test accuracy": score.accuracy}))


if __name__ == "__main__":
    sys.exit(main())
