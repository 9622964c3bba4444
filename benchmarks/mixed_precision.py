"""Training in bfloat16 mixed precision against float32 on a CPU, in turns.

    python benchmarks/mixed_precision.py > benchmarks/results/mixed_precision.txt

`train()` as users run it, for 10 steps of 64 random images of 32 pixels: VGG-16 and ResNet-56, whole and pruned to half
of their FLOPs in multiples of 16. Printed are images for each second of processor time of one thread, the best of three
rounds, and the ratio. A processor that announces bfloat16 without having it stops here with an illegal instruction.
"""

from __future__ import annotations

import time

import torch
from _results import print_header
from torch import nn

import slimilar
from slimilar.data import Images
from slimilar.models import build
from slimilar.train import Recipe, TrainingSettings, train
from slimilar.train.settings import Precision

SEED, ROUNDS, BATCH, STEPS = 0, 3, 64, 10
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    print_header("python benchmarks/mixed_precision.py", SEED)
    print(f"\n{'images a second':22} {'float32':>9} {'bfloat16':>9} {'ratio':>6}")
    for name in ("vgg16", "resnet56"):
        whole = build(name, 10).eval()
        half = slimilar.prune(
            whole, torch.zeros(1, 3, 32, 32), flops=0.5, criterion="magnitude-l2", reconstruction="none"
        )
        for label, model in ((name, whole), (f"{name}, half", half.model)):
            rates = [{p: _rate(model, p) for p in PRECISIONS} for _ in range(ROUNDS)]
            single, mixed = (max(r[p] for r in rates) for p in PRECISIONS)
            print(f"{label:22} {single:9.0f} {mixed:9.0f} {mixed / single:6.2f}", flush=True)


def _rate(model: nn.Module, precision: Precision) -> float:
    images = Images(
        torch.randint(256, (STEPS * BATCH, 32, 32, 3), dtype=torch.uint8),
        torch.randint(10, (STEPS * BATCH,)),
    )
    began = time.process_time()
    train(
        model,
        images,
        Recipe(epochs=1, batch_size=BATCH, lr=0.01),
        settings=TrainingSettings(precision=precision),
    )
    return STEPS * BATCH / (time.process_time() - began)


if __name__ == "__main__":
    main()
