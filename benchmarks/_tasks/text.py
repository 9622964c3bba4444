"""Two networks of PP-OCRv4 in ONNX files (PyPI, wheel rapidocr-onnxruntime), on the number plates of `plates.py`.

One marks the pixels of text (segmentation), the other reads a line of it. FOLDER holds the two files out of the wheel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from _accuracy.images import Task
from PIL import Image
from torch import Tensor, nn

from _tasks.case import Case, Scores
from _tasks.plates import Photo, photos
from slimilar.deploy.onnx_files import load_onnx

MARKER, READER = "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"
SIDE, LINE = 320, (48, 320)  # pixels: of a square for the one, height and width of a line for the other
BUDGETS = (0.8, 0.65, 0.5)
TEXT = 0.3  # a pixel of a higher value is text, as in the wheel's own configuration


def segmentation(folder: Path, seed: int) -> Case:
    """Return the network that marks text, with squares around number plates."""
    model = load_onnx(folder / MARKER, ((3, SIDE, SIDE),))
    fitted, scored = (torch.stack([_square(photo) for photo in part]) for part in _parts(folder, seed))
    with torch.no_grad():
        before = _marks(model, scored)

    def score(small: nn.Module) -> Scores:
        now = _marks(small, scored)
        both, either = (now & before).sum(), (now | before).sum()
        agreement = (now == before).float().mean()
        return {"pixels": round(100 * float(agreement), 2), "iou": round(100 * float(both / either), 2)}

    return Case(Task("ppocr-text", model, fitted, scored, before, seed), BUDGETS, score)


def reading(folder: Path, seed: int) -> Case:
    """Return the network that reads a line, with number plates."""
    import onnx

    model = load_onnx(folder / READER, ((3, *LINE),))
    listed = {p.key: p.value for p in onnx.load(folder / READER).metadata_props}["character"].splitlines()
    letters = ["", *listed, " "]
    parts = _parts(folder, seed)
    fitted, scored = (torch.stack([_line(photo) for photo in part]) for part in parts)
    truth = [_plain(photo.text) for photo in parts[1]]
    before = _read(model, scored, letters)

    def score(small: nn.Module) -> Scores:
        now = _read(small, scored, letters)
        right, same = (
            np.mean([a == b for a, b in zip(now, other, strict=True)]) for other in (truth, before)
        )
        return {"read": round(100 * float(right), 2), "agreement": round(100 * float(same), 2)}

    return Case(Task("ppocr-reader", model, fitted, scored, torch.zeros(0), seed), BUDGETS, score)


def _parts(folder: Path, seed: int) -> tuple[list[Photo], list[Photo]]:
    """Return photos to calibrate with, and those to score on; a detector needs some to train on, these do not."""
    first, more, scored = photos(folder, seed)
    return first + more[:64], scored


@torch.no_grad()
def _marks(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) > TEXT for part in x.split(8)])


@torch.no_grad()
def _read(model: nn.Module, x: Tensor, letters: list[str]) -> list[str]:
    """Return what stands in each line: the best letter at every place, repetitions and blanks left out."""
    best = torch.cat([model(part).argmax(2) for part in x.split(16)])
    return [_plain("".join(letters[i] for i in torch.unique_consecutive(line).tolist())) for line in best]


def _plain(text: str) -> str:
    """Return letters and digits alone: plates are written with and without dashes."""
    return "".join(c for c in text.upper() if c.isalnum())


def _square(photo: Photo) -> Tensor:
    """Return a square of four times a plate's width, where the photo has it."""
    left, top, right, bottom = photo.plates[0].tolist()
    x, y, half = (left + right) / 2, (top + bottom) / 2, 2 * (right - left)
    with Image.open(photo.file) as image:
        part = image.convert("RGB").crop((int(x - half), int(y - half), int(x + half), int(y + half)))
    return _prepared(part.resize((SIDE, SIDE)))


def _line(photo: Photo) -> Tensor:
    """Return a plate at the height of a line, with a small margin, the rest grey."""
    left, top, right, bottom = photo.plates[0].tolist()
    wide, tall = 0.03 * (right - left), 0.05 * (bottom - top)
    with Image.open(photo.file) as image:
        part = image.convert("RGB").crop(
            (int(left - wide), int(top - tall), int(right + wide), int(bottom + tall))
        )
    found = torch.zeros(3, *LINE)
    width = min(LINE[1], round(LINE[0] * part.width / part.height))
    found[:, :, :width] = _prepared(part.resize((width, LINE[0])))
    return found


def _prepared(image: Image.Image) -> Tensor:
    """Return an image as these networks take it: blue first, in [-1, 1]."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 127.5 - 1
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)
