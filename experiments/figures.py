"""One style for all figures: few lines, direct labels, colours for colour-blind readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slimilar.errors import SlimilarError
from slimilar.utils.atomic import replacing

# Okabe and Ito (2008)
COLOURS = {
    "Ours": "#D55E00",
    "Ours + reconstruction": "#D55E00",
    "NS": "#0072B2",
    "SSL": "#009E73",
    "RDF": "#CC79A7",
    "PFGM": "#E69F00",
    "SFP": "#56B4E9",
    "TN": "#000000",
    "CP": "#8C7A00",
}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#999999",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "slimilar",
    "figure.constrained_layout.use": True,
}


def canvas(rows: int = 1, columns: int = 1, width: float = 7.2, height: float = 3.2, **more: Any) -> Any:
    """Return a figure and its axes, always as a grid of rows and columns."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise SlimilarError(
            "figures need matplotlib; install it with: pip install 'slimilar[plot]'"
        ) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(_STYLE)
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **more)


def save(figure: Any, stem: Path, part: str) -> list[Path]:
    """Write a figure as PNG and SVG and return where; `part` tells several figures of an experiment apart."""
    from matplotlib import pyplot as plt

    files = []
    for suffix, options in ((".png", {"dpi": 160}), (".svg", {"metadata": {"Date": None}})):
        file = stem.with_name(f"{stem.name}{'-' if part else ''}{part}{suffix}")
        with replacing(file) as unfinished:
            figure.savefig(unfinished, **options)
        files.append(file)
    plt.close(figure)
    return files


def label_ends(axis: Any, ends: dict[str, tuple[float, float, str]], gap: float) -> None:
    """Write names beside the ends of lines, moved apart by at least `gap` (in the units of y)."""
    last = -float("inf")
    for name, (x, y, colour) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(y, last + gap)
        axis.annotate(
            name, (x, y), xytext=(x, place), textcoords="data", color=colour, va="center", ha="left",
            fontsize=8, annotation_clip=False, xycoords="data",
        )  # fmt: skip
        last = place
