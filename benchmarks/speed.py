"""Time and memory of pruning, side by side with Torch-Pruning in one run, as ratios.

    python benchmarks/speed.py [--runs 5] [--threads 1]
    python benchmarks/speed.py --curves [--runs 3]           # over the width and the number of layers

Ours, twice: `prune(model, x, threshold=...)` with plain removal, and the default call `prune(model, x, flops=0.5)`,
which reconstructs without data. Both include the verification. Torch-Pruning: building its graph and one step at 50 %.
Each has a process of its own, so that neither pays for memory or garbage that another has left, and their runs take
turns; times are medians of processor time on one thread, which other programs on the machine do not lengthen much.
Memory is the growth of a new process's peak over what it held before (Linux). Output: benchmarks/results/speed.txt;
speed-curves.txt and speed-curves.svg.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version

import torch
from _memory import growth
from _results import RESULTS
from torch import nn

import slimilar
from slimilar.utils import provenance
from slimilar.utils.atomic import write_text
from slimilar.utils.torchvision_compat import import_torchvision

GOALS = {"resnet50": 2.0, "densenet121": 10.0, "mobilenet_v2": 1.0}
WIDTHS = (16, 32, 64, 128, 256)  # of a bottleneck of ResNet-50 in its first stage; 64 in the original
LAYERS = {26: (1, 2, 4, 1), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 269: (3, 30, 48, 8)}
CALLS = ("removal", "default", "torch-pruning")


def model_of(name: str) -> nn.Module:
    """Return a torchvision network, or a ResNet of a width and a number of layers, with batch norms as if trained."""
    torch.manual_seed(0)
    net = _resnet(name) if "x" in name else getattr(import_torchvision().models, name)(weights=None)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.1, 1.5)
            nn.init.normal_(m.bias, 0, 0.5)
    return net.eval()


def _resnet(name: str) -> nn.Module:
    layers, width = map(int, name.split("x"))
    resnet = import_torchvision("torchvision.models.resnet")
    net: nn.Module = resnet.ResNet(resnet.Bottleneck, list(LAYERS[layers]), width_per_group=width)
    return net


def removal(net: nn.Module, x: torch.Tensor) -> None:
    slimilar.prune(net, x, threshold=0.1, substitute="none")


def default(net: nn.Module, x: torch.Tensor) -> None:
    slimilar.prune(net, x, flops=0.5)


def torch_pruning(net: nn.Module, x: torch.Tensor) -> None:
    import torch_pruning as tp

    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    pruner = tp.pruner.MagnitudePruner(
        net, x, importance=tp.importance.MagnitudeImportance(p=2), pruning_ratio=0.5, ignored_layers=[last]
    )
    pruner.step()


TOOLS: dict[str, Callable[[nn.Module, torch.Tensor], None]] = dict(
    zip(CALLS, (removal, default, torch_pruning), strict=True)
)


def own_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def seconds(tool: str, name: str, threads: int) -> float:
    """Return the processor time of one run on a new model."""
    torch.set_num_threads(threads)
    net, x = model_of(name), torch.randn(1, 3, 224, 224)
    start = time.process_time()
    TOOLS[tool](net, x)
    return time.process_time() - start


def times(name: str, runs: int, threads: int) -> dict[str, float]:
    """Return the median time by tool, without the first run, which loads code."""
    found: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    with ExitStack() as stack:
        processes = {tool: stack.enter_context(own_process()) for tool in TOOLS}
        for _ in range(runs + 1):
            for tool, process in processes.items():
                found[tool].append(process.submit(seconds, tool, name, threads).result())
    return {tool: statistics.median(all_of[1:]) for tool, all_of in found.items()}


def peak(tool: str, name: str, threads: int) -> float:
    """Return the MiB by which the peak of a new process grows."""
    torch.set_num_threads(threads)
    net, x = model_of(name), torch.randn(1, 3, 224, 224)
    import torch_pruning  # noqa: F401  all processes hold the same libraries

    grown = growth()
    TOOLS[tool](net, x)
    return grown()


def memory(name: str, threads: int) -> dict[str, float]:
    """Return the memory by tool."""
    found = {}
    for tool in TOOLS:
        with own_process() as process:
            found[tool] = process.submit(peak, tool, name, threads).result()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--curves", action="store_true", help="over the width and the number of layers")
    args = parser.parse_args()
    command = (
        f"python benchmarks/speed.py{' --curves' * args.curves} --runs {args.runs} --threads {args.threads}"
    )
    lines = [
        f"command: {command}   seed 0",
        f"torch {torch.__version__}, slimilar {slimilar.__version__}, torch-pruning {version('torch-pruning')}",
        f"{provenance.hardware()}; seconds of processor time: compare the ratios",
    ]
    lines.append(
        f"{'network':<14}"
        + "".join(f"{tool + ' s':>16}" for tool in CALLS)
        + f"{'removal faster':>16}{'goal':>6}"
        + "".join(f"{tool + ' MiB':>19}" for tool in CALLS)
    )
    print("\n".join(lines), flush=True)
    names = [*(f"50x{w}" for w in WIDTHS), *(f"{n}x64" for n in LAYERS)] if args.curves else list(GOALS)
    found = {}
    for name in dict.fromkeys(names):
        found[name] = spent, held = times(name, args.runs, args.threads), memory(name, args.threads)
        lines.append(_line(name, spent, held))
        print(lines[-1], flush=True)
        write_text(RESULTS / ("speed-curves.txt" if args.curves else "speed.txt"), "\n".join(lines) + "\n")
    if args.curves:
        _plot(found)


def _line(name: str, spent: dict[str, float], held: dict[str, float]) -> str:
    goal = f"{GOALS[name]:.0f}x" if name in GOALS else ""
    return (
        f"{name:<14}"
        + "".join(f"{spent[tool]:>16.2f}" for tool in CALLS)
        + f"{spent['torch-pruning'] / spent['removal']:>15.1f}x{goal:>6}"
        + "".join(f"{held[tool]:>19.0f}" for tool in CALLS)
    )


def _plot(found: dict[str, tuple[dict[str, float], dict[str, float]]]) -> None:
    """Draw time and memory over the width (of 50 layers) and over the layers (of the usual width)."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slimilar", "font.size": 9})
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col")
    columns = (
        ("width of the first bottleneck", {w: f"50x{w}" for w in WIDTHS}),
        ("layers", {n: f"{n}x64" for n in LAYERS}),
    )
    for row, unit in enumerate(("processor time, s", "memory, MiB")):
        for panel, (label, names) in zip(panels[row], columns, strict=True):
            for tool in CALLS:
                panel.plot(list(names), [found[n][row][tool] for n in names.values()], "o-", label=tool)
            panel.set(ylabel=unit, xlabel=label if row else "", ylim=(0, None))
            panel.grid(alpha=0.3)
    panels[0][0].legend()
    figure.savefig(RESULTS / "speed-curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
