"""Measured time: runs of all candidates in turn, medians with confidence intervals.

A machine that is slow for a moment is slow for every candidate of that round, so ratios are taken round by round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from slimilar.deploy.layer_times import layer_times
from slimilar.deploy.runtimes import ENGINES, Runtime
from slimilar.graph.structure import Structure
from slimilar.planning.cut import Cut
from slimilar.planning.latency import Interval, MeasuredLatency, Progress, Timer, by_time, cut_within_latency
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.planning.time_model import TimeModel, timed_layers
from slimilar.surgery.rewrite import operate, surgery
from slimilar.utils.devices import CPU, synchronize
from slimilar.utils.modules import device_of
from slimilar.utils.pytree import Example

Run = Callable[[], object]
_WARM_UP = 10  # runs on an accelerator, whose clocks rise


@dataclass(frozen=True, eq=False)
class Timings:
    """Milliseconds of every round (rows) of every candidate (columns)."""

    names: tuple[str, ...]
    samples: NDArray[np.float64]

    def milliseconds(self, name: str) -> Interval:
        """Return how long a candidate takes."""
        return median(self.samples[:, self.names.index(name)])

    def ratio(self, after: str, before: str) -> Interval:
        """Return the time of one candidate as a share of another's, compared round by round."""
        columns = [self.samples[:, self.names.index(name)] for name in (after, before)]
        return median(columns[0] / columns[1])


def median(samples: NDArray[np.float64]) -> Interval:
    """Return the median and its 95 % interval by order statistics, which holds for any distribution.

    >>> median(np.arange(101.0))
    Interval(value=50.0, low=40.0, high=60.0)
    """
    ordered = np.sort(samples)
    n = len(ordered)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = math.floor(n / 2 - reach), math.ceil(n / 2 + reach) - 1
    return Interval(float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)]))


def _events(device: torch.device) -> tuple[Any, Any]:
    """Return two events that a device's own clock sets; None for both where it has none."""
    if device.type == "cpu":
        return None, None
    try:
        found = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        for event in found:
            event.record()
        found[1].synchronize()
        found[0].elapsed_time(found[1])
    except (RuntimeError, TypeError, NotImplementedError):
        return None, None
    return found


def stopwatch(device: torch.device) -> Callable[[Run], float]:
    """Return a function that runs a candidate once and returns the milliseconds it took, on its device."""
    start, end = _events(device)

    def wall(run: Run) -> float:
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        return 1000 * (time.perf_counter() - began)

    def events(run: Run) -> float:
        synchronize(device)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return wall if start is None else events


def measure(
    candidates: Mapping[str, Run],
    *,
    seconds: float = 2.0,
    least: int = 11,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    device: torch.device = CPU,
) -> Timings:
    """Run all candidates in turn, in a random order each round, for so many seconds and at least so many rounds.

    On an accelerator each run is timed by the device's own events, from an idle device to the end of its work.
    """
    names, random, clock = tuple(candidates), np.random.default_rng(seed), stopwatch(device)
    for name in names:  # the first runs of a candidate make its memory and pick its kernels
        for _ in range(1 if device.type == "cpu" else _WARM_UP):
            candidates[name]()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or len(rounds) < least:
        found = dict.fromkeys(names, 0.0)
        for i in random.permutation(len(names)).tolist():
            found[names[i]] = clock(candidates[names[i]])
        rounds.append([found[name] for name in names])
        if progress is not None:
            progress(min(1.0, spent / max(seconds, 1e-9), len(rounds) / least))
    return Timings(names, np.array(rounds))


def timer(
    model: nn.Module,
    example: Example,
    structure: Structure,
    *,
    runtime: str | Runtime = "pytorch",
    seconds: float = 1.0,
) -> Timer:
    """Return a function that builds a cut of a model and measures its time against the original's."""
    settings = Runtime.of(runtime)
    run, example = ENGINES[settings.name], settings.example(example)
    original = run(model, example)
    where = settings.describe(device_of(model))

    def timed(cut: Cut) -> MeasuredLatency:
        small = operate(model, surgery(structure.trace, structure.grouping, cut.mask))
        timings = measure(
            {"before": original, "after": run(small, example)}, seconds=seconds, device=device_of(model)
        )
        before, after = timings.milliseconds("before"), timings.milliseconds("after")
        return MeasuredLatency(before, after, timings.ratio("after", "before"), where)

    return timed


def cut_for_latency(
    model: nn.Module,
    example: Example,
    plan: Plan,
    target: PruningTarget,
    runtime: str | Runtime = "pytorch",
    progress: Progress | None = None,
) -> tuple[Cut, MeasuredLatency]:
    """Return the mildest cut within a budget of time in a runtime, and what was measured of it."""
    settings = Runtime.of(runtime)
    with settings.thread_count():
        measured = layer_times(settings.name, device_of(model), progress)
        layers = timed_layers(plan, settings.batch)
        predictor = None
        if measured is not None and layers:
            tables = measured([layer.shape for layer in layers])
            predictor = by_time(plan, target, TimeModel(plan, layers, tables))
        timed = timer(model, example, plan.structure, runtime=settings)
        return cut_within_latency(plan, target, timed, predictor, progress)
