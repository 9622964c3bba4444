"""Time saved beside FLOPs saved: pruned networks in three runtimes, widths rounded (the default) and not.

    python benchmarks/latency.py --networks resnet50,mobilenet_v2 --runtimes onnxruntime --threads 1 --seconds 6

Every network is pruned to 70 and 50 % of its FLOPs: with the default rounding, with every width, and as a reference
uniformly, every group to the same share in multiples of 16. A second one is MobileNetV2 built narrower in multiples
of 16, residual streams included: the most that a runtime gives for these FLOPs. For each runtime and number of threads,
the original and all others take turns; medians of the rounds, ratios round by round. The ratio is time saved / FLOPs
saved: 1 means that every saved FLOP is saved time. The sweep adds milder and harder budgets and thresholds, by default
rounded. Weights are random, which no convolution's time depends on. Rows that are already in the file are not measured
again. On a machine with other work, `--clock processor` counts the processor time of the process instead of wall time:
the same on one thread, but for cold caches. ONNX files are kept in the folder for temporary files, by commit:
`--export` only writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _results import RESULTS, commit, opened
from speed import model_of
from torch import nn

import slimilar
from slimilar.deploy.latency import Run, Timings, measure
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.runtimes import ENGINES, available, onnxruntime_file, openvino_file
from slimilar.planning.cost import count
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.utils.atomic import replacing, write_text
from slimilar.utils.provenance import header
from slimilar.utils.row_ledger import RowLedger
from slimilar.utils.torchvision_compat import import_torchvision

NETWORKS = ("resnet50", "mobilenet_v2", "vgg16_bn", "densenet121", "efficientnet_b0")
RUNTIMES = ("onnxruntime", "pytorch", "openvino")
BUDGETS = (0.7, 0.5)
WAYS = ("auto", "1", "uniform", "narrower")
SWEEP = ("flops 0.95", "flops 0.85", "flops 0.3", "threshold 0.05", "threshold 0.15", "threshold 0.3")
THREADS = (1, 2)
GOALS = {"onnxruntime": 0.95, "pytorch": 0.9, "openvino": 0.9}
LOG = RESULTS / "latency.jsonl"
BEFORE = "original"
FILE_RUNS = {"onnxruntime": onnxruntime_file, "openvino": openvino_file}


class Candidates:
    """A network and what is compared with it: models by name, made and exported when they are needed."""

    def __init__(self, network: str) -> None:
        self.network, self.x = network, torch.randn(1, 3, 224, 224)
        self.net = model_of(network)
        self.folder = Path(tempfile.gettempdir()) / "slimilar-latency" / f"{commit()}".replace(" ", "")
        self.model = cache(self._model)
        self.plan = cache(lambda: slimilar.analyze(self.net, self.x))

    def names(self, runtime: str, threads: int) -> list[str]:
        """Return what is measured in a runtime: the sweep in one only."""
        ways = [way for way in WAYS if way != "narrower" or self.network == "mobilenet_v2"]
        found = [f"{budget} {way}" for budget in BUDGETS for way in ways]
        return [BEFORE, *found, *(SWEEP if (runtime, threads) == ("onnxruntime", 1) else ())]

    def run(self, name: str, runtime: str) -> Run:
        """Return what runs a model once."""
        if runtime not in FILE_RUNS:
            return ENGINES[runtime](self.model(name), self.x)
        return FILE_RUNS[runtime](self.file(name), self.x)

    def file(self, name: str) -> Path:
        """Return the ONNX file of a model."""
        file = self.folder / f"{self.network}-{name.replace(' ', '-')}.onnx"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            export_onnx(self.model(name), file, self.x, dynamic_batch=False)
            file.with_suffix(".json").write_text(json.dumps(count(self.model(name), self.x).flops))
        return file

    def flops(self, name: str) -> int:
        """Return the FLOPs of a model."""
        known = self.folder / f"{self.network}-{name.replace(' ', '-')}.json"
        found = json.loads(known.read_text()) if known.exists() else count(self.model(name), self.x).flops
        return int(found)

    def _model(self, name: str) -> nn.Module:
        if name == BEFORE:
            return self.net
        kind, way = name.split()
        if way == "narrower":
            return narrower(float(kind) * self.flops(BEFORE), self.x)
        if way == "uniform":
            target = uniform(self.plan(), float(kind))
        elif kind in ("flops", "threshold"):
            target = PruningTarget("flops" if kind == "flops" else "threshold", float(way))
        else:
            target = PruningTarget("flops", float(kind), "auto" if way == "auto" else int(way))
        return slimilar.apply(
            self.net, self.x, self.plan(), target, reconstruction="none", verify=False
        ).model


def uniform(plan: Plan, share: float) -> PruningTarget:
    """Return the mildest ratio for all groups, in hundredths, that is within a share of the FLOPs."""
    targets = (PruningTarget("ratio", r / 100, 16) for r in range(100))
    return next(t for t in targets if plan.cut(t).flops <= share * plan.before.flops)


def narrower(flops: float, x: torch.Tensor) -> nn.Module:
    """Return the widest MobileNetV2 in multiples of 16 within a number of FLOPs."""
    build = import_torchvision().models.mobilenet_v2
    made = (build(weights=None, width_mult=w / 50, round_nearest=16) for w in range(50, 10, -1))
    found: nn.Module = next(net for net in made if count(net, x).flops <= flops)
    return found.eval()


def processor_times(runs: Mapping[str, Run], seconds: float) -> Timings:
    """Return the processor time of all candidates in turn, in a random order each round."""
    random, names = np.random.default_rng(0), tuple(runs)
    rounds: list[list[float]] = []
    for _ in range(2):  # the first runs make their memory
        for run in runs.values():
            run()
    end = time.process_time() + seconds
    while time.process_time() < end or len(rounds) < 11:
        row = [0.0] * len(names)
        for i in random.permutation(len(names)).tolist():
            began = time.process_time()
            runs[names[i]]()
            row[i] = 1000 * (time.process_time() - began)
        rounds.append(row)
    return Timings(names, np.array(rounds))


def measured(
    found: Candidates, names: Sequence[str], runtime: str, threads: int, args: argparse.Namespace
) -> Timings:
    """Return the times of all models in turn, on so many threads."""
    torch.set_num_threads(threads)
    runs = {name: found.run(name, runtime) for name in names}
    if args.clock == "processor":
        return processor_times(runs, args.seconds)
    return measure(runs, seconds=args.seconds)


def record(rows: RowLedger, network: str, runtime: str, threads: int, args: argparse.Namespace) -> None:
    """Measure a network in a runtime, unless that was done."""
    if rows.all(network=network, runtime=runtime, threads=threads):
        return
    found = Candidates(network)
    names = found.names(runtime, threads)
    timings = measured(found, names, runtime, threads, args)
    for name in names[1:]:
        share, left = found.flops(name) / found.flops(BEFORE), timings.ratio(name, BEFORE)
        saved = 1 - share
        rows.append(
            {"network": network, "runtime": runtime, "threads": threads, "candidate": name, "flops": share,
             "before_ms": timings.milliseconds(BEFORE).value, "time": left.value, "low": left.low, "high": left.high,
             "ratio": (1 - left.value) / saved if saved else None, "clock": args.clock, "rounds": len(timings.samples),
             "load": round(os.getloadavg()[0], 1)}
        )  # fmt: skip


# --- the table --------------------------------------------------------------------------------------------------------


INTRO = """# Time saved beside FLOPs saved

`{command}`, seed 0, {hardware}, torch {torch}. One image of 224 x 224, float32, medians of runs in turn. Ratio:
time saved / FLOPs saved. Rounded: the default; any width: `round_to=1`; uniform: every group cut to the same share in
multiples of 16, and the FLOPs that this leaves, which may be far below the budget: many groups lose a block at once;
narrower: MobileNetV2 built with fewer channels everywhere, in multiples of 16. Load: of the machine's two cores while
measuring; rows with a star are processor time, because of it.
"""
OTHERS = """
## Other budgets and thresholds

ONNX Runtime, one thread, the default rounding. No pruned network may be slower than its original.
"""
COLUMNS = (
    "network", "runtime", "threads", "FLOPs left", "original", "time left, rounded", "ratio, rounded",
    "ratio, any width", "ratio, uniform", "ratio, narrower", "goal", "load",
)  # fmt: skip


def table(rows: RowLedger, command: str) -> str:
    """Return all that was measured, as markdown."""
    about = header(command, 0, rows.all()[0].get("commit") if rows.all() else None)
    intro = INTRO.format(command=command, hardware=about["hardware"], torch=torch.__version__)
    sweep = _table(["network", *SWEEP], _sweep(rows))
    return "\n".join([intro, *_table(COLUMNS, _ratios(rows)), OTHERS, *sweep]) + "\n"


def _table(columns: Sequence[str], lines: Iterator[list[str]]) -> list[str]:
    return [f"| {' | '.join(c)} |" for c in (columns, ["---"] * len(columns), *lines)]


def _ratios(rows: RowLedger) -> Iterator[list[str]]:
    for network in NETWORKS:
        for runtime in RUNTIMES:
            for threads in THREADS:
                for budget in BUDGETS:
                    key = {"network": network, "runtime": runtime, "threads": threads}
                    found = [rows.find(**key, candidate=f"{budget} {way}") for way in WAYS]
                    if (first := found[0]) is not None:
                        yield [network, runtime, str(threads), *_line(first, found)]


def _line(first: Mapping[str, Any], found: Sequence[Mapping[str, Any] | None]) -> list[str]:
    goal = GOALS[first["runtime"]]
    met = "met" if first["ratio"] >= goal else "missed"
    load = f"{first.get('load', '')}{' *' * (first.get('clock') == 'processor')}"
    return [
        f"{100 * first['flops']:.1f} %", f"{first['before_ms']:.1f} ms", _time(first),
        *map(_ratio, found), f"{goal}: {met}", load,
    ]  # fmt: skip


def _ratio(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    at = f" at {100 * row['flops']:.0f} %" * row["candidate"].endswith("uniform")
    return f"{row['ratio']:.2f}{at}"


def _time(row: Mapping[str, Any]) -> str:
    return f"{100 * row['time']:.1f} % ({100 * row['low']:.1f}..{100 * row['high']:.1f})"


def _sweep(rows: RowLedger) -> Iterator[list[str]]:
    for network in NETWORKS:
        found = [
            rows.find(network=network, runtime="onnxruntime", threads=1, candidate=name) for name in SWEEP
        ]
        if any(found):
            cells = [
                "" if r is None else f"{100 * r['flops']:.0f} % FLOPs, {_time(r)} of the time" for r in found
            ]
            yield [network, *cells]


def plot(rows: RowLedger, file: Path) -> None:
    """Draw time over FLOPs, rounded against any width: one panel for each runtime, one thread."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(RUNTIMES), sharey=True)
    for panel, runtime in zip(panels, RUNTIMES, strict=True):
        for way, colour, marker, label in (
            ("auto", "#0072B2", "o", "rounded"),
            ("1", "#D55E00", "x", "any width"),
        ):
            some = [r for r in rows.all(runtime=runtime, threads=1) if r["candidate"].endswith(f" {way}")]
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
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--threads", default=",".join(map(str, THREADS)))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--export", action="store_true", help="only write the ONNX files")
    parser.add_argument("--log", type=Path, default=LOG)
    args = parser.parse_args()
    rows = opened(args.log, "benchmarks")
    for network in filter(None, args.networks.split(",")):
        if args.export:
            found = Candidates(network)
            for name in found.names("onnxruntime", 1):
                print(network, name, found.file(name).stat().st_size, found.flops(name), flush=True)
            continue
        for runtime in (r for r in args.runtimes.split(",") if r in available()):
            for threads in map(int, args.threads.split(",")):
                record(rows, network, runtime, threads, args)
    write_text(args.log.with_suffix(".md"), table(rows, "python benchmarks/latency.py"))
    plot(rows, args.log.with_suffix(".svg"))


if __name__ == "__main__":
    main()
