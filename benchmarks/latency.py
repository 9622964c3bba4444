"""Time saved beside FLOPs saved: pruned networks in three runtimes, widths rounded (the default) and not.

    python benchmarks/latency.py --networks resnet50,mobilenet_v2 --seconds 6

Every network is pruned to 70 and 50 % of its FLOPs, once with the default rounding and once with every width. In each
runtime and for each number of threads, the original and all pruned ones take turns; medians of the rounds, ratios
round by round. The ratio is time saved / FLOPs saved: 1 means that every saved FLOP is saved time. Weights are
random, which no convolution's time depends on. Rows that are already in the file are not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _results import RESULTS, opened
from speed import model_of
from torch import nn

import slimilar
from slimilar.deploy.latency import Timings, measure
from slimilar.deploy.runtimes import ENGINES, available
from slimilar.utils.atomic import replacing, write_text
from slimilar.utils.provenance import header
from slimilar.utils.row_ledger import RowLedger

NETWORKS = ("resnet50", "mobilenet_v2", "vgg16_bn", "densenet121", "efficientnet_b0")
RUNTIMES = ("onnxruntime", "pytorch", "openvino")
BUDGETS = (0.7, 0.5)
ROUNDINGS: tuple[Any, ...] = ("auto", 1)
THREADS = (1, 2)
GOALS = {"onnxruntime": 0.95, "pytorch": 0.9, "openvino": 0.9}
LOG = RESULTS / "latency.jsonl"
BEFORE = "original"


def pruned(net: nn.Module, x: torch.Tensor) -> dict[str, slimilar.Result]:
    """Return the network at every budget and rounding."""
    plan = slimilar.analyze(net, x)
    return {
        f"{budget} {round_to}": slimilar.apply(
            net,
            x,
            plan,
            slimilar.PruningTarget("flops", budget, round_to),
            reconstruction="none",
            verify=False,
        )
        for budget in BUDGETS
        for round_to in ROUNDINGS
    }


def measured(
    runtime: str, models: Mapping[str, nn.Module], x: torch.Tensor, threads: int, seconds: float
) -> Timings:
    """Return the times of all models in turn, on so many threads."""
    torch.set_num_threads(threads)
    return measure({name: ENGINES[runtime](model, x) for name, model in models.items()}, seconds=seconds)


def record(rows: RowLedger, name: str, seconds: float, counts: Sequence[int]) -> None:
    """Measure a network in all runtimes that have no rows yet."""
    wanted = [(r, t) for r in RUNTIMES if r in available() for t in counts]
    missing = [(r, t) for r, t in wanted if not rows.all(network=name, runtime=r, threads=t)]
    if not missing:
        return
    net, x = model_of(name), torch.randn(1, 3, 224, 224)
    found = pruned(net, x)
    models = {BEFORE: net, **{key: result.model for key, result in found.items()}}
    for runtime, threads in missing:
        timings = measured(runtime, models, x, threads, seconds)
        for key, result in found.items():
            budget, round_to = key.split()
            share, time = result.cut.flops / result.cut.before.flops, timings.ratio(key, BEFORE)
            rows.append(
                {"network": name, "runtime": runtime, "threads": threads, "budget": float(budget), "round_to": round_to,
                 "flops": share, "before_ms": timings.milliseconds(BEFORE).value, "time": time.value,
                 "low": time.low, "high": time.high, "ratio": (1 - time.value) / (1 - share)}
            )  # fmt: skip


def table(rows: RowLedger, command: str) -> str:
    """Return all that was measured, as markdown."""
    about = header(command, 0, rows.all()[0].get("commit") if rows.all() else None)
    intro = (
        f"`{command}`, seed 0, {about['hardware']}, torch {torch.__version__}. One image of 224 x 224, float32, "
        "medians of runs in turn. Ratio: time saved / FLOPs saved. Rounded: the default; any width: `round_to=1`."
    )
    columns = [
        "network", "runtime", "threads", "FLOPs left", "original", "time left, rounded", "ratio, rounded",
        "time left, any width", "ratio, any width", "goal",
    ]  # fmt: skip
    lines = [
        "# Time saved beside FLOPs saved",
        "",
        intro,
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name in NETWORKS:
        for runtime in RUNTIMES:
            for threads in THREADS:
                for budget in BUDGETS:
                    key = {"network": name, "runtime": runtime, "threads": threads, "budget": budget}
                    a, b = (rows.find(**key, round_to=str(r)) for r in ROUNDINGS)
                    if a is not None and b is not None:
                        lines.append(_line(a, b))
    return "\n".join(lines) + "\n"


def _line(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    goal = GOALS[a["runtime"]]
    met = "met" if a["ratio"] >= goal else "missed"
    times = [f"{100 * r['time']:.1f} % ({100 * r['low']:.1f}..{100 * r['high']:.1f})" for r in (a, b)]
    return (
        f"| {a['network']} | {a['runtime']} | {a['threads']} | {100 * a['flops']:.1f} % | {a['before_ms']:.1f} ms | "
        f"{times[0]} | {a['ratio']:.2f} | {times[1]} | {b['ratio']:.2f} | {goal}: {met} |"
    )


def plot(rows: RowLedger, file: Path) -> None:
    """Draw time over FLOPs, rounded against any width: one panel for each runtime, one thread."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(RUNTIMES), sharey=True)
    for panel, runtime in zip(panels, RUNTIMES, strict=True):
        for round_to, colour, marker, label in (
            ("auto", "#0072B2", "o", "rounded"),
            ("1", "#D55E00", "x", "any width"),
        ):
            some = rows.all(runtime=runtime, threads=1, round_to=round_to)
            panel.plot(
                [r["flops"] for r in some], [r["time"] for r in some], marker, color=colour, label=label
            )
        panel.plot([0.4, 1], [0.4, 1], ":", color="#555555", label="time saved = FLOPs saved")
        panel.axhline(1, color="#bbbbbb", linewidth=0.8)
        panel.set(title=runtime, xlabel="FLOPs left", xlim=(0.4, 0.8))
    panels[0].set_ylabel("time left")
    panels[0].legend(frameon=False)
    with replacing(file) as unfinished:
        figure.savefig(unfinished, metadata={"Date": None})


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", default=",".join(map(str, THREADS)))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--log", type=Path, default=LOG)
    args = parser.parse_args()
    rows = opened(args.log, "benchmarks")
    for name in args.networks.split(","):
        record(rows, name, args.seconds, [int(n) for n in args.threads.split(",")])
    write_text(args.log.with_suffix(".md"), table(rows, "python benchmarks/latency.py"))
    plot(rows, args.log.with_suffix(".svg"))


if __name__ == "__main__":
    main()
