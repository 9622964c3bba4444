"""How many unlabelled pictures it takes: accuracy at half the FLOPs against their number.

    python benchmarks/few_pictures.py > benchmarks/results/few_pictures.txt

The shipped network and pictures, no fine-tuning; both criteria with the same least-squares fit to the same pictures.
"""

from __future__ import annotations

import platform

import torch

import slimilar
from slimilar.data import demo_pictures
from slimilar.models import demo_network
from slimilar.train import evaluate

COUNTS, FLOPS, SEED = (8, 16, 32, 64, 128, 256), 0.5, 0


def main() -> None:
    net, shown, test = demo_network(), demo_pictures("train").tensor(), demo_pictures("test")
    print("# command   python benchmarks/few_pictures.py")
    print(f"# seed      {SEED}")
    print(
        f"# versions  slimilar {slimilar.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"# accuracy  in % of {len(test):,} test pictures at {FLOPS:.0%} of the FLOPs; ", end="")
    print(f"before pruning {100 * evaluate(net, test).accuracy:.1f}\n")
    print(f"{'pictures':>8} {'similarity':>11} {'span':>7}")
    for count in COUNTS:
        found = [_kept(net, shown[:count], criterion) for criterion in ("similarity", "span")]
        print(f"{count:>8} {100 * evaluate(found[0], test).accuracy:>11.1f} ", end="")
        print(f"{100 * evaluate(found[1], test).accuracy:>7.1f}", flush=True)


def _kept(net: torch.nn.Module, pictures: torch.Tensor, criterion: str) -> torch.nn.Module:
    result = slimilar.prune(
        net, pictures[:1], flops=FLOPS, criterion=criterion, calibration=pictures, seed=SEED
    )
    return result.model


if __name__ == "__main__":
    main()
