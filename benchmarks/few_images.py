"""How many unlabelled images it takes: accuracy at half the FLOPs against their number.

    python benchmarks/few_images.py > benchmarks/results/few_images.txt

The shipped network and images, no fine-tuning; both criteria with the same least-squares fit to the same images.
"""

from __future__ import annotations

import torch
from _results import print_header

import slimilar
from slimilar.data import demo_images
from slimilar.models import demo_network
from slimilar.train import evaluate

COUNTS, FLOPS, SEED = (8, 16, 32, 64, 128, 256), 0.5, 0


def main() -> None:
    net, shown, test = demo_network(), demo_images("train").tensor(), demo_images("test")
    print_header("python benchmarks/few_images.py", SEED)
    print(f"# accuracy  in % of {len(test):,} test images at {FLOPS:.0%} of the FLOPs; ", end="")
    print(f"before pruning {100 * evaluate(net, test).accuracy:.1f}\n")
    print(f"{'images':>8} {'similarity':>11} {'span':>7}")
    for count in COUNTS:
        found = [_kept(net, shown[:count], criterion) for criterion in ("similarity", "span")]
        print(f"{count:>8} {100 * evaluate(found[0], test).accuracy:>11.1f} ", end="")
        print(f"{100 * evaluate(found[1], test).accuracy:>7.1f}", flush=True)


def _kept(net: torch.nn.Module, images: torch.Tensor, criterion: str) -> torch.nn.Module:
    result = slimilar.prune(
        net, images[:1], flops=FLOPS, round_to=1, criterion=criterion, calibration=images, seed=SEED
    )
    return result.model


if __name__ == "__main__":
    main()
