"""A detector of number plates: YOLOv8n of fastanpr (PyPI), photos and true boxes of github openalpr/benchmarks.

FOLDER/plates.pt is fastanpr/best.pt of the wheel, FOLDER/plates/ is the folder endtoend of the repository: 444 photos
with one text file each, of which a line holds the file's name, then left, top, width, height and text of a plate.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _accuracy.images import Task
from PIL import Image
from torch import Tensor, nn

from _tasks.case import Case, Scores
from slimilar.models.detectors import RawPredictions
from slimilar.utils.torchvision_compat import import_torchvision

SIZE = 416  # pixels of the longer side; the detector was trained at 640, which takes this CPU more than twice as long
CALIBRATION, TRAIN, SCORED = 64, 180, 120  # photos, of 444
BUDGETS = (0.8, 0.65, 0.5)
CONFIDENCE, OVERLAP = 0.25, 0.5


@dataclass(frozen=True)
class Photo:
    """A file, its plates as left, top, right, bottom in pixels, and what is written on the first."""

    file: Path
    plates: Tensor
    text: str = ""


def yolo(source: Any) -> Any:
    """Return a detector of ultralytics."""
    import_torchvision()
    library: Any = importlib.import_module("ultralytics")
    return library.YOLO(source)


def photos(folder: Path, seed: int) -> tuple[list[Photo], list[Photo], list[Photo]]:
    """Return photos to calibrate with, to train on and to score on; they never meet."""
    files = sorted((folder / "plates").glob("*/*.jpg"))
    order = np.random.default_rng(seed).permutation(len(files))
    found = [_photo(files[i]) for i in order]
    scored = found[CALIBRATION + TRAIN :][:SCORED]
    return found[:CALIBRATION], found[CALIBRATION : CALIBRATION + TRAIN], scored


def _photo(file: Path) -> Photo:
    lines = [x.split("\t") for x in file.with_suffix(".txt").read_text().splitlines() if x.strip()]
    boxes = torch.tensor([[float(n) for n in line[1:5]] for line in lines])
    boxes[:, 2:] += boxes[:, :2]
    return Photo(file, boxes, lines[0][5].strip())


def letterboxed(photos: list[Photo]) -> Tensor:
    """Return photos as the network receives them: the longer side scaled to SIZE, grey bars, in [0, 1]."""
    return torch.stack([_letterboxed(photo.file) for photo in photos])


def _letterboxed(file: Path) -> Tensor:
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    scale = SIZE / max(image.size)
    image = image.resize((round(scale * image.width), round(scale * image.height)), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (SIZE, SIZE), (114, 114, 114))
    canvas.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1).float() / 255


def boxes(model: Any, photos: list[Photo]) -> list[Tensor]:
    """Return the boxes that a detector finds in each photo."""
    return [
        model.predict(p.file, imgsz=SIZE, conf=CONFIDENCE, device="cpu", verbose=False)[0].boxes.xyxy
        for p in photos
    ]


def case(folder: Path, seed: int) -> Case:
    """Return the detector, up to its raw predictions, and how the boxes of a pruned one are scored."""
    fitted, _, scored = photos(folder, seed)
    original = yolo(folder / "plates.pt")
    detector = original.model.float().eval()
    images = letterboxed(fitted)
    task = Task(
        "yolov8n-plates", RawPredictions(copy.deepcopy(detector)).eval(), images, images, images, seed
    )
    before, truth = boxes(original, scored), [photo.plates for photo in scored]

    def score(small: nn.Module) -> Scores:
        found = boxes(wearing(folder, small), scored)
        true = {f"true {name}": value for name, value in matched(found, truth).items()}
        return matched(found, before) | true

    return Case(task, BUDGETS, score)


def wearing(folder: Path, small: nn.Module) -> Any:
    """Return a detector of ultralytics with the network of a pruned one."""
    worn = yolo(folder / "plates.pt")
    inner: Any = copy.deepcopy(small)
    worn.model = inner.unwrapped()
    return worn


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
