"""Prune a YOLO of ultralytics with a few photos, train it on with its own trainer, save and export it.

    python examples/detect.py best.pt --photos photos --data data.yaml --flops 0.6 --epochs 10

Writes small.pt, which `YOLO("small.pt")` loads, and small.onnx. With `--epochs 0` nothing is trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import slimilar
from slimilar.models.detectors import RawPredictions
from slimilar.utils.torchvision_compat import import_torchvision

import_torchvision()  # before ultralytics, where torch is a CPU build
from ultralytics import YOLO  # noqa: E402
from ultralytics.data.augment import LetterBox  # noqa: E402
from ultralytics.models.yolo.detect import DetectionTrainer  # noqa: E402
from ultralytics.utils.patches import imread  # noqa: E402


class PrunedTrainer(DetectionTrainer):
    """Trains the network of the file; the usual trainer builds it again from its YAML file, at full width."""

    def get_model(self, cfg=None, weights=None, verbose=True):
        return weights


def letterboxed(folder: Path, size: int) -> torch.Tensor:
    """Return photos as the network receives them: letterboxed, RGB, in [0, 1]."""
    box = LetterBox((size, size))
    images = [box(image=imread(str(file)))[:, :, ::-1].copy() for file in sorted(folder.iterdir())]
    return torch.stack([torch.from_numpy(i).permute(2, 0, 1) for i in images]).float() / 255


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--photos", type=Path, required=True, help="unlabelled; 64 or more are good")
    parser.add_argument("--data", help="YAML file of the dataset to train on")
    parser.add_argument("--flops", type=float, default=0.6)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=640)
    args = parser.parse_args(arguments)
    yolo = YOLO(args.model)
    photos = letterboxed(args.photos, args.size)
    network = RawPredictions(yolo.model.float()).eval()
    result = slimilar.prune(network, photos[:1], flops=args.flops, calibration=photos)
    print(result.summary())
    yolo.model = result.model.unwrapped()
    yolo.save("small.pt")
    small = YOLO("small.pt")
    if args.epochs:  # at a low rate from the start: the fitted network is near an optimum
        small.train(
            trainer=PrunedTrainer, data=args.data, epochs=args.epochs, imgsz=args.size, optimizer="SGD", lr0=0.001,
            warmup_epochs=0, plots=False, project=str(Path("runs").absolute()),
        )  # fmt: skip
        small.save("small.pt")
    YOLO("small.pt").export(format="onnx", imgsz=args.size)


if __name__ == "__main__":
    main()
