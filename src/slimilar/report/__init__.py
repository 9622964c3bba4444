"""The explorer: one interactive HTML file for choosing a threshold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.report.data import describe
from slimilar.report.page import render
from slimilar.report.state import opening
from slimilar.utils.atomic import write_text
from slimilar.utils.modules import named_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Latency", "Point", "write_report"]


@dataclass(frozen=True)
class Point:
    """A measured accuracy, in [0, 1], of a network with the given FLOPs."""

    label: str
    flops: int
    accuracy: float


@dataclass(frozen=True)
class Latency:
    """Latency in milliseconds, before and after the cut, and the device.

    `curve` has pairs of FLOPs and milliseconds of other cuts, measured or out of a table of latencies: with it the page
    shows the time of every threshold, interpolated. Without it, only that of the cut in which the page opens.
    """

    before: float
    after: float
    device: str = ""
    curve: Sequence[tuple[int, float]] = ()


def write_report(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    model: nn.Module | Mapping[str, Tensor] | None = None,
    title: str,
    source: str | None = None,
    cut: Cut | None = None,
    points: Sequence[Point] = (),
    latency: Latency | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    target: PruningTarget | None = None,
) -> Path:
    """Write the explorer of a plan, a self-contained HTML page, and return its path.

    `model` is the module or its tensors by name; only gamma and beta of batch norms are read. `source` is the
    model and options that follow `slimilar prune` on the command line to get this plan. `cut` is the initial
    state of the page, and `target` what was asked for to get it. `points` are drawn on the trade-off curve; `latency`
    is shown beside the FLOPs; `rows` are measurements, shown as a table.
    The file is written atomically.
    """
    tensors = {} if model is None else model if isinstance(model, Mapping) else named_tensors(model)
    data = {
        "title": title,
        "source": source,
        "state": asdict(opening(plan, cut)),
        "target": None if target is None else asdict(target),
        "points": [asdict(point) for point in points],
        "latency": asdict(latency) if latency is not None else None,
        "measured": [{str(key): value for key, value in row.items()} for row in rows],
        **describe(plan, tensors),
    }
    return write_text(path, render(data))
