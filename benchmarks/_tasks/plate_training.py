"""A pruned detector trained on by the trainer of ultralytics, for a few epochs on labelled photos."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

import slimilar
from _tasks.case import Case
from _tasks.plates import SIZE, Photo, photos, wearing, yolo
from slimilar.utils.atomic import write_text

EPOCHS = 3
RATES = {
    "auto": 0.001,
    "none": 0.01,
}  # gentle where there is a fit to keep, the library's default where there is none


def trained(case: Case, folder: Path, kept: Path, method: str, flops: float) -> dict[str, Any]:
    """Train a network that was kept, by its own trainer, and score it on the same photos as before."""
    file = kept / f"{case.task.name}-{flops}-{method}-{case.task.seed}.safetensors"
    small: Any = slimilar.load(file, case.task.model)
    start = kept / "start.pt"
    wearing(folder, small).save(start)
    detector = yolo(start)
    data = _dataset(photos(folder, case.task.seed)[1], kept / "photos")
    detector.train(
        trainer=_trainer(), data=str(data), epochs=EPOCHS, imgsz=SIZE, optimizer="SGD", lr0=RATES[method], batch=8,
        warmup_epochs=0, plots=False, val=False, workers=0, device="cpu", verbose=False, seed=case.task.seed,
        project=str(kept / "runs"), name=f"{method}-{flops}", exist_ok=True,
    )  # fmt: skip
    small.detector = detector.model.float().eval()
    return {"photos": len(photos(folder, case.task.seed)[1]), "lr": RATES[method], **case.score(small)}


def _trainer() -> Any:
    """Return a trainer that trains the network of the file, and does not build it at full width."""
    base: Any = importlib.import_module("ultralytics.models.yolo.detect").DetectionTrainer

    def get_model(self: Any, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
        return weights

    return type("PrunedTrainer", (base,), {"get_model": get_model})


def _dataset(labelled: list[Photo], folder: Path) -> Path:
    """Write photos and their boxes as ultralytics reads them; return the file that names them."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for i, photo in enumerate(labelled):
        with Image.open(photo.file) as opened:
            image, (wide, tall) = opened.convert("RGB"), opened.size
        image.thumbnail((SIZE, SIZE))
        image.save(folder / "images" / f"{i}.jpg", quality=95)
        write_text(
            folder / "labels" / f"{i}.txt", "".join(_label(box, wide, tall) for box in photo.plates.tolist())
        )
    names = "names: {0: License_Plate}"
    return write_text(
        folder / "data.yaml", f"path: {folder.absolute()}\ntrain: images\nval: images\n{names}\n"
    )


def _label(box: list[float], wide: int, tall: int) -> str:
    left, top, right, bottom = box
    numbers = (
        (left + right) / 2 / wide,
        (top + bottom) / 2 / tall,
        (right - left) / wide,
        (bottom - top) / tall,
    )
    return "0 " + " ".join(f"{n:.6f}" for n in numbers) + "\n"
