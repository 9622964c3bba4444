"""The table of the benchmark of tasks."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from _accuracy.methods import METHODS

Row = dict[str, Any]
TITLES = {
    "denoise": "Denoiser: DnCNN, Gaussian noise of sigma 25/255",
    "detect": "Detector: YOLOv8n for number plates, at 416 pixels",
    "segment": "Segmentation: text or not, PP-OCRv4 (ONNX)",
    "read": "Reader: lines of text, PP-OCRv4 (ONNX)",
}
SCORES = {  # what is measured, and how it is called
    "denoise": {"psnr": "PSNR, dB", "agreement": "output explained, %"},
    "detect": {
        "precision": "precision, %",
        "recall": "recall, %",
        "true precision": "precision, true plates",
        "true recall": "recall, true plates",
    },
    "segment": {"pixels": "pixels as before, %", "iou": "IoU of text with before, %"},
    "read": {"read": "plates read right, %", "agreement": "read as before, %"},
}
_READING = """# Networks that do not classify

Command: `python benchmarks/tasks.py --data FOLDER`; rows with seeds, versions and commits in tasks.jsonl.
Pruned with unlabelled images, no training unless a row says so. FLOPs are those of the whole network. Images to
calibrate with, to train on and to score on never meet. A seed draws all of them anew, but not Set68.

CPU seconds are those of pruning, or of training and scoring where a row says that it is trained. The first budget of a
run includes the scan, which serves all of them.

- Denoiser: 128 noisy crops of 64 pixels out of 300 training images; scored on centre crops of 160 pixels of Set68.
  The noisy images have 20.2 dB. The filters of largest norm, which GRAIL keeps, hardly carry the noise: without its
  regression they leave 20.1 dB at 70 % of the FLOPs (a run that is not in the .jsonl file).
- Detector: 64 photos; scored on 120. A box counts if it overlaps a wanted one by half (IoU 0.5): `precision` and
  `recall` take the boxes of the network before pruning for the truth, the columns to the right the true plates.
- Segmentation and reader: 128 crops around number plates; scored on 120. A plate is read right if all its letters and
  digits are.

Torchvision's segmentation networks (FCN, DeepLabV3, LR-ASPP) have no trained weights in the package registries; they
are pruned and verified at random weights in [zoo.txt](zoo.txt).
"""


def table(rows: list[Row]) -> str:
    """Return the page: a table for every task."""
    parts = [_READING]
    for task, title in TITLES.items():
        found = [row for row in rows if row["task"] == task]
        if found:
            parts.append("\n".join([f"## {title}", "", *_lines(SCORES[task], found)]) + "\n")
    return "\n".join(parts)


def _lines(scores: dict[str, str], rows: list[Row]) -> list[str]:
    together: dict[tuple[float, str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda r: -r["flops"]):
        together.setdefault((row["flops"], row["method"], row.get("epochs", 0)), []).append(row)
    head = ["FLOPs left", "method", *scores.values(), "CPU seconds"]
    return [_cells(head), "|---" * len(head) + "|", *(_line(scores, found) for found in together.values())]


def _line(scores: dict[str, str], found: list[Row]) -> str:
    row = found[0]
    words = "before pruning" if row["method"] == "before" else METHODS[row["method"]][1]
    words += f", then {row['epochs']} epochs of its own trainer" if row.get("epochs") else ""
    measured = [_spread([r[name] for r in found]) for name in scores]
    return _cells([f"{row.get('flops_left', row['flops']):.1%}", words, *measured, _time(found)])


def _time(found: list[Row]) -> str:
    """Return the processor time it took: clocks tell more of what else ran. The original took none."""
    return "" if found[0]["method"] == "before" else f"{mean(r['cpu'] for r in found):.0f}"


def _spread(values: list[float]) -> str:
    more = f" ± {stdev(values):.2f} ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{mean(values):.2f}{more}"


def _cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
