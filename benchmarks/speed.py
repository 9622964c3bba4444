"""Time and memory of pruning, side by side with Torch-Pruning in one run, as ratios.

    python benchmarks/speed.py [--runs 5] [--threads 1]

Ours: `slimilar.prune(model, x, threshold=...)` end to end, verification included, plain removal. Torch-Pruning:
building its graph and one step at 50 %. Each tool has a process of its own, so that neither pays for memory or garbage
that the other has left, and their runs take turns; times are medians of processor time on one thread, which other
programs on the machine do not lengthen much. Memory is the growth of a new process's peak over what it held before
(Linux). Output: benchmarks/results/speed.txt.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from _memory import growth
from _results import RESULTS
from torch import nn

import slimilar
from slimilar.utils.atomic import write_text
from slimilar.utils.torchvision_compat import import_torchvision

GOALS = {"resnet50": 2.0, "densenet121": 10.0, "mobilenet_v2": 1.0}


def model_of(name: str) -> nn.Module:
    """A torchvision network whose batch norms look trained, so that there is something to cluster."""
    torch.manual_seed(0)
    net: nn.Module = getattr(import_torchvision().models, name)(weights=None)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.1, 1.5)
            nn.init.normal_(m.bias, 0, 0.5)
    return net.eval()


def ours(net: nn.Module, x: torch.Tensor) -> None:
    slimilar.prune(net, x, threshold=0.1, substitute="none")


def torch_pruning(net: nn.Module, x: torch.Tensor) -> None:
    import torch_pruning as tp

    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    pruner = tp.pruner.MagnitudePruner(
        net, x, importance=tp.importance.MagnitudeImportance(p=2), pruning_ratio=0.5, ignored_layers=[last]
    )
    pruner.step()


TOOLS: dict[str, Callable[[nn.Module, torch.Tensor], None]] = {
    "slimilar": ours,
    "torch-pruning": torch_pruning,
}


def own_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def seconds(tool: str, name: str, threads: int) -> float:
    """Return the processor time of one run on a new model."""
    torch.set_num_threads(threads)
    net, x = model_of(name), torch.randn(1, 3, 224, 224)
    start = time.process_time()
    TOOLS[tool](net, x)
    return time.process_time() - start


def times(name: str, runs: int, threads: int) -> dict[str, list[float]]:
    """Return the times of all runs by tool."""
    found: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    with own_process() as a, own_process() as b:
        for _ in range(runs):
            for process, tool in zip((a, b), TOOLS, strict=True):
                found[tool].append(process.submit(seconds, tool, name, threads).result())
    return found


def peak(tool: str, name: str, threads: int) -> float:
    """Return the MiB by which the peak of a new process grows."""
    torch.set_num_threads(threads)
    net, x = model_of(name), torch.randn(1, 3, 224, 224)
    import torch_pruning  # noqa: F401  both processes hold the same libraries

    grown = growth()
    TOOLS[tool](net, x)
    return grown()


def memory(tool: str, name: str, threads: int) -> float:
    with own_process() as process:
        return process.submit(peak, tool, name, threads).result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    versions = f"torch {torch.__version__}, slimilar {slimilar.__version__}, torch-pruning {_version()}"
    columns = ("slimilar s", "torch-pruning s", "faster", "goal", "slimilar MiB", "torch-pruning MiB")
    lines = [
        f"command: python benchmarks/speed.py --runs {args.runs} --threads {args.threads}   seed 0",
        f"{versions}, {platform.machine()}, shared cores: compare the ratios, not the seconds of processor time",
        " ".join([f"{'network':<14}", *(f"{c:>{max(7, len(c))}}" for c in columns)]),
    ]
    for name, goal in GOALS.items():
        a, b = (statistics.median(found) for found in times(name, args.runs, args.threads).values())
        mine, theirs = (memory(tool, name, args.threads) for tool in TOOLS)
        lines.append(
            f"{name:<14} {a:>10.2f} {b:>15.2f} {b / a:>6.1f}x {goal:>6.0f}x {mine:>12.0f} {theirs:>17.0f}"
        )
        print("\n".join(lines) if len(lines) == 4 else lines[-1], flush=True)
    write_text(RESULTS / "speed.txt", "\n".join(lines) + "\n")


def _version() -> str:
    from importlib.metadata import version

    return version("torch-pruning")


if __name__ == "__main__":
    main()
