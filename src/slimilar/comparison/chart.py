"""Charts of accuracy over FLOPs, right after pruning and after fine-tuning: a row of panels for each reconstruction."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimilar.comparison.rows import Comparison
from slimilar.comparison.table import Line, lines
from slimilar.errors import InvalidInput
from slimilar.utils.atomic import replacing

# Okabe and Ito's colours, which colour-blind readers can distinguish; the yellow is darker, for white paper.
COLOURS = ("#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#555555")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # once round the colours each
MARKERS = "^sv<P>pXh*d8"
STRONG = {"similarity": "#0072B2", "span": "#D55E00"}  # ours are drawn in stronger lines
STAGES = (("pruned", "right after pruning"), ("tuned", "after fine-tuning"))


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(found: Comparison, files: Sequence[Path]) -> None:
    """Draw the curves into files, each by its suffix: .png, .svg, .pdf."""
    if not can_draw():
        raise InvalidInput("drawing needs matplotlib; run: pip install 'slimilar[plot]'")
    figure = _figure(found)
    for file in files:
        with replacing(file) as unfinished:
            # No date in it: the same rows make the same file.
            metadata = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(unfinished, dpi=150, metadata=metadata)


def _figure(found: Comparison) -> Any:
    importlib.import_module("matplotlib").rcParams.update(
        {"svg.hashsalt": "slimilar", "svg.fonttype": "none"}
    )
    figures = importlib.import_module("matplotlib.figure")
    every = lines(found.rows)
    names = sorted(
        {row.criterion for row in found.rows}
    )  # sorted, so that the order of rows does not change colours
    styles = _styles(names)
    stages = [stage for stage in STAGES if any(line.mean(stage[0]) is not None for line in every)]
    kinds = _kinds(every)
    size = (1.2 + 5.2 * max(1, len(stages)), 1.0 + 4.4 * max(1, len(kinds)))
    figure = figures.Figure(figsize=size, layout="constrained")
    figure.suptitle(_title(found), fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(max(1, len(kinds)), max(1, len(stages)), squeeze=False)
    for row, (title, chosen) in zip(axes, kinds, strict=False):
        for axis, (field, when) in zip(row, stages, strict=False):
            _panel(axis, found, chosen, field, styles)
            axis.set_title(f"{title}, {when}", fontsize=10.5, loc="left")
    return figure


@dataclass(frozen=True)
class _Style:
    colour: str
    marker: str
    dashes: Any = "-"
    strong: bool = False


def _styles(names: Sequence[str]) -> dict[str, _Style]:
    """Return a different colour, marker and line style for every criterion."""
    styles = {name: _Style(STRONG[name], "oD"[i % 2], strong=True) for i, name in enumerate(STRONG)}
    for i, name in enumerate(name for name in names if name not in STRONG):
        dashes = DASHES[i // len(COLOURS) % len(DASHES)]
        styles[name] = _Style(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], dashes)
    return {name: styles[name] for name in names}


def _title(found: Comparison) -> str:
    terms, start = found.header["terms"], found.baseline
    trained = int(terms["training images"].partition(",")[0])
    parts = [str(found.header.get("model") or ""), f"{start.images:,} test images" if start else ""]
    if terms["epochs"]:
        parts.append(
            f"fine-tuning: {terms['epochs']} epoch{'s'[: terms['epochs'] > 1]} of {trained:,} images"
        )
    return "; ".join(filter(None, parts))


def _kinds(every: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """Return the lines of each row of panels: each criterion's own reconstruction, then each common one."""
    own = [line for line in every if line.own]
    shared = dict.fromkeys(line.substitute for line in every if not line.own)
    kinds = [("each as in its paper", own)] if own else []
    return kinds + [(_kind(name), [line for line in every if line.substitute == name]) for name in shared]


def _kind(substitute: str) -> str:
    return "all without reconstruction" if substitute == "none" else f"all with {substitute} reconstruction"


def _panel(
    axis: Any, found: Comparison, chosen: Sequence[Line], field: str, styles: dict[str, _Style]
) -> None:
    start = found.baseline
    ends = []
    for name in styles:
        points = sorted(_points(chosen, name, field))
        if not points:
            continue
        ends.append((name, points[0][1], points[0][0]))
        if start is not None:
            points.append((100.0, 100 * start.accuracy))
        _line(axis, points, styles[name])
    _decorate(axis, found)
    _label(axis, ends, styles)


def _points(chosen: Sequence[Line], name: str, field: str) -> list[tuple[float, float]]:
    found = []
    for line in chosen:
        share, accuracy = line.mean("flops_share"), line.mean(field)
        if line.criterion == name and share is not None and accuracy is not None:
            found.append((100 * share, 100 * accuracy))
    return found


def _line(axis: Any, points: Sequence[tuple[float, float]], style: _Style) -> None:
    x, y = zip(*points, strict=True)
    axis.plot(
        x, y, color=style.colour, marker=style.marker, linestyle=style.dashes,
        markersize=7 if style.strong else 5.5, linewidth=2.4 if style.strong else 1.2,
        markeredgecolor="white", markeredgewidth=0.6, zorder=3 if style.strong else 2,
    )  # fmt: skip


def _decorate(axis: Any, found: Comparison) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.set_xlabel("FLOPs left, %", fontsize=9)
    axis.set_ylabel("test accuracy, %", fontsize=9)
    axis.tick_params(labelsize=8.5, length=3)
    if found.baseline is not None:
        level = 100 * found.baseline.accuracy
        axis.axhline(level, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axis.annotate(
            f"unpruned {level:.1f}", (1, level), (-2, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=8, color="#666666",
        )  # fmt: skip


def _label(axis: Any, ends: Sequence[tuple[str, float, float]], styles: dict[str, _Style]) -> None:
    """Write every name beside the left end of its line, moved apart where they would overlap."""
    if not ends:
        return
    low, high = axis.get_ylim()
    left, right = axis.get_xlim()
    axis.set_xticks([tick for tick in axis.get_xticks() if left <= tick <= right])
    axis.set_xlim(left - 0.46 * (right - left), right)
    axis.set_ylim(low, high)
    axis.spines["bottom"].set_bounds(left, right)
    ordered = sorted(ends, key=lambda end: end[1])
    gap = (high - low) / 21
    places = apart([y for _, y, _ in ordered], gap, low + gap / 2, high - gap / 2)
    edge = min(x for _, _, x in ordered) - 0.075 * (right - left)
    for (name, y, x), place in zip(ordered, places, strict=True):
        style = styles[name]
        axis.plot([edge + 0.01 * (right - left), x], [place, y], color=style.colour, linewidth=0.5, alpha=0.6)
        axis.text(
            edge, place, f"{name} {y:.1f}", color=style.colour, fontsize=8, ha="right", va="center",
            fontweight="bold" if style.strong else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted positions as little as possible, so that neighbours are a gap apart and all lie within two bounds.

    >>> apart([1.0, 1.0, 5.0], 1.0, 0.0, 10.0)
    [0.5, 1.5, 5.0]
    """
    # Blocks of places that touch, each at the mean of what its members want: pool adjacent violators.
    blocks: list[list[float]] = []  # sum of (wanted - offset), count
    for i, place in enumerate(wanted):
        blocks.append([place - i * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    shifts = [total / count for total, count in blocks for _ in range(int(count))]
    room = max(low, high - gap * (len(wanted) - 1))
    return [min(max(shift, low), room) + i * gap for i, shift in enumerate(shifts)]
