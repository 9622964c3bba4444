"""A detector of number plates: YOLOv8n of fastanpr (PyPI), photos and true boxes of github openalpr/benchmarks.

FOLDER/plates.pt is fastanpr/best.pt of the wheel, FOLDER/plates/ is the folder endtoend of the repository: 444 photos with
one text file each, of which a line holds the file's name, then left, top, width and height of a plate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slimilar.utils.torchvision_compat import import_torchvision

SIZE = 416  # pixels of the longer side; the detector was trained at 640, which takes this CPU more than twice as long
CALIBRATION, TRAIN = 64, 180  # photos; the rest, 200, are scored on
CONFIDENCE, OVERLAP = 0.25, 0.5


@dataclass(frozen=True)
class Photo:
    """A file and its plates, as left, top, right, bottom in pixels."""

    file: Path
    plates: Tensor


def yolo(source: Any) -> Any:
    """Return a detector of ultralytics."""
    import_torchvision()
    from ultralytics import YOLO

    return YOLO(source)


def photos(folder: Path, seed: int) -> tuple[list[Photo], list[Photo], list[Photo]]:
    """Return photos to calibrate with, to train on and to score on; they never meet."""
    files = sorted((folder / "plates").glob("*/*.jpg"))
    order = np.random.default_rng(seed).permutation(len(files))
    found = [Photo(files[i], _plates(files[i].with_suffix(".txt"))) for i in order]
    return found[:CALIBRATION], found[CALIBRATION : CALIBRATION + TRAIN], found[CALIBRATION + TRAIN :]


def _plates(file: Path) -> Tensor:
    lines = [line.split("\t") for line in file.read_text().splitlines() if line.strip()]
    boxes = torch.tensor([[float(n) for n in line[1:5]] for line in lines])
    boxes[:, 2:] += boxes[:, :2]
    return boxes


def letterboxed(photos: list[Photo]) -> Tensor:
    """Return photos as the network receives them: the longer side scaled to SIZE, grey bars, in [0, 1]."""
    return torch.stack([_letterboxed(photo.file) for photo in photos])


def _letterboxed(file: Path) -> Tensor:
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    image.thumbnail((SIZE, SIZE)) if max(image.size) > SIZE else None
    canvas = Image.new("RGB", (SIZE, SIZE), (114, 114, 114))
    canvas.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1).float() / 255


def boxes(model: Any, photos: list[Photo]) -> list[Tensor]:
    """Return the boxes that a detector finds in each photo."""
    return [
        model.predict(p.file, imgsz=SIZE, conf=CONFIDENCE, device="cpu", verbose=False)[0].boxes.xyxy
        for p in photos
    ]


def matched(given: list[Tensor], wanted: list[Tensor]) -> dict[str, float]:
    """Return precision and recall in %: a box counts if it overlaps one that is wanted by half, each used once."""
    hits = sum(map(_hits, given, wanted))
    found, there = sum(map(len, given)), sum(map(len, wanted))
    return {"precision": round(100 * hits / max(1, found), 2), "recall": round(100 * hits / max(1, there), 2)}


def _hits(given: Tensor, wanted: Tensor) -> int:
    """Count the pairs, the best overlap first."""
    overlap = _overlaps(given, wanted)
    hits = 0
    while overlap.numel() and float(overlap.max()) >= OVERLAP:
        row, column = divmod(int(overlap.argmax()), overlap.shape[1])
        overlap[row], overlap[:, column] = -1, -1
        hits += 1
    return hits


def _overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of every two boxes."""
    sides = torch.minimum(a[:, None, 2:], b[None, :, 2:]) - torch.maximum(a[:, None, :2], b[None, :, :2])
    shared = sides.clamp(min=0).prod(2)
    areas = [(x[:, 2:] - x[:, :2]).prod(1) for x in (a, b)]
    return shared / (areas[0][:, None] + areas[1] - shared)
