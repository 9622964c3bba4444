"""The explorer: one HTML file in which a threshold is chosen by eye."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.planning.plan import Cut, Plan
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
    """An accuracy that was measured: a share in [0, 1] of a network with so many FLOPs."""

    label: str
    flops: int
    accuracy: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds that were measured before and after the cut, and on what."""

    before: float
    after: float
    device: str = ""


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
) -> Path:
    """Write the explorer of a plan, one HTML page that needs nothing else, and return where.

    `model` may be the module or its tensors by name; only gamma and beta of batch norms are read. `source` is
    what follows `slimilar prune` to get this plan: the model and the options, as on a command line. The page
    opens at `cut`. `points` are drawn on the trade-off curve; `rows` are measurements, shown as a table.
    The file is written whole or not at all.
    """
    tensors = {} if model is None else model if isinstance(model, Mapping) else named_tensors(model)
    data = {
        "title": title,
        "source": source,
        "state": asdict(opening(plan, cut)),
        "points": [asdict(point) for point in points],
        "latency": asdict(latency) if latency is not None else None,
        "measured": [{str(key): value for key, value in row.items()} for row in rows],
        **describe(plan, tensors),
    }
    return write_text(path, render(data))
