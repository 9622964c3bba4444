"""What it brings to keep freed memory, in processor time: with it (the default) and without, in turns.

    python benchmarks/allocator.py > benchmarks/results/allocator.txt

Each case in a process of its own and on one thread: `prune` of MobileNetV2 with 128 images of 224 pixels, and 20
training steps of VGG-16 and ResNet-56 at batches of 64. Weights and images are random, which no time
depends on. Without: an empty GLIBC_TUNABLES, because settings of the environment are left alone. Printed is
the processor time, user and system, of the faster of two runs, and the largest memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from typing import Any

import torch
from _results import print_header

import slimilar
from slimilar.data import Images
from slimilar.models import build
from slimilar.train import Recipe, train
from slimilar.utils.torchvision_compat import import_torchvision

SEED, ROUNDS, BATCH, STEPS = 0, 2, 64, 20
CASES = ("prune mobilenet_v2", "train vgg16", "train resnet56")
SWITCH = {"without": {"GLIBC_TUNABLES": ""}, "with": {}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, help="run this one here, and print what it took as JSON")
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    if args.case:
        print(json.dumps(_run(args.case)))
        return
    print_header("python benchmarks/allocator.py", SEED)
    print(
        f"\n{'':20} {'without':>26} {'with':>26} {'ratio':>6}\n{'':20}" + 2 * f" {'user + system s, MiB':>26}"
    )
    for case in args.cases.split(","):
        took: dict[str, list[dict[str, float]]] = {name: [] for name in SWITCH}
        for _ in range(ROUNDS):
            for name in SWITCH:
                took[name].append(_measured(case, name))
        best = {name: min(runs, key=_total) for name, runs in took.items()}
        cells = [f"{r['user']:.1f} + {r['system']:.1f}, {r['peak']:.0f}" for r in best.values()]
        ratio = _total(best["with"]) / _total(best["without"])
        print(f"{case:20} {cells[0]:>26} {cells[1]:>26} {ratio:6.2f}", flush=True)


def _total(run: dict[str, float]) -> float:
    return run["user"] + run["system"]


def _measured(case: str, switch: str) -> dict[str, float]:
    """Return what a case took in a process of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    ran = subprocess.run(
        [sys.executable, __file__, "--case", case], env=clean | SWITCH[switch] | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _run(case: str) -> dict[str, float]:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    what, network = case.split()
    work = _pruning(network) if what == "prune" else _training(network)
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "peak": after.ru_maxrss / 1024,
    }


def _pruning(name: str) -> Any:
    model = getattr(import_torchvision().models, name)(weights=None).eval()
    images = torch.randn(128, 3, 224, 224)
    return lambda: slimilar.prune(model, images[:1], flops=0.7, calibration=images, criterion="span")


def _training(name: str) -> Any:
    images = Images(
        torch.randint(256, (STEPS * BATCH, 32, 32, 3), dtype=torch.uint8),
        torch.randint(10, (STEPS * BATCH,)),
    )  # fmt: skip
    model = build(name, 10)
    return lambda: train(model, images, Recipe(epochs=1, batch_size=BATCH, lr=0.01))


if __name__ == "__main__":
    main()
