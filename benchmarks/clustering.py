"""How long it takes to cluster one layer, against its width.

    python benchmarks/clustering.py > benchmarks/results/clustering.txt

Times Eq. 4, normalisation, the linkage tree, the removal order and one cut, end to end, for a random
batch norm; the best of three runs, one thread. Clustering is O(width^2) in time and memory.
"""

from __future__ import annotations

import time

import torch
from _results import print_header

from slimilar.similarity.distances import channel_distance, normalise
from slimilar.similarity.linkage import Linkage, linkage_tree, removal_order
from slimilar.similarity.removal_order import clusters

SEED = 0
WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
LINKAGES: tuple[Linkage, ...] = ("average", "complete", "single")


def seconds(width: int, linkage: Linkage) -> float:
    """Return the best of three times from batch norm parameters to clusters."""
    generator = torch.Generator().manual_seed(SEED)
    beta, gamma = torch.randn(2, width, generator=generator)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        tree = linkage_tree(normalise(channel_distance(beta, gamma)), linkage)
        clusters(removal_order(tree, gamma), 0.25, width)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    print_header("python benchmarks/clustering.py", SEED)
    print(f"\n{'width':>6}" + "".join(f"{linkage:>12}" for linkage in LINKAGES))
    for width in WIDTHS:
        times = "".join(f"{1000 * seconds(width, linkage):9.1f} ms" for linkage in LINKAGES)
        print(f"{width:6}{times}", flush=True)


if __name__ == "__main__":
    main()
