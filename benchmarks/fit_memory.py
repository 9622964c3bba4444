"""The largest memory of a least-squares fit by the number of images, where activations are largest.

    python benchmarks/fit_memory.py > benchmarks/results/fit_memory.txt

ResNet-50 with random weights and random images of 224 pixels; each number of images in a process of its own, which
stops after the first eight consumer layers: there images are large and channels many. Printed is the largest memory of
the process, beyond what it held with model and images in place.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import torch
from _memory import growth
from _results import print_header

import slimilar
from slimilar.utils.torchvision_compat import import_torchvision

SEED, AMOUNTS, LAYERS = 0, (64, 256, 600, 1200), 8


class Enough(Exception):
    """The layers of interest are fitted."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, help="run this number here, and print the MiB as JSON")
    args = parser.parse_args()
    if args.images:
        print(json.dumps(_grown(args.images)))
        return
    print_header("python benchmarks/fit_memory.py", SEED)
    print("\nimages    MiB")
    for amount in AMOUNTS:
        words = [sys.executable, __file__, "--images", str(amount)]
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
        print(f"{amount:6} {json.loads(ran.stdout.splitlines()[-1]):6.0f}", flush=True)


def _grown(amount: int) -> float:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = import_torchvision().models.resnet50(weights=None).eval()
    images = torch.rand(amount, 3, 224, 224)
    grown = growth()

    def stop(title: str, done: int, _total: int) -> None:
        if title == "reconstructing" and done == LAYERS:
            raise Enough

    try:
        slimilar.prune(
            model, images[:1], flops=0.7, criterion="magnitude-l2", calibration=images, progress=stop
        )
    except Enough:
        return grown()
    raise AssertionError(f"there must be more than {LAYERS} layers to fit")


if __name__ == "__main__":
    main()
