"""Which images a network is calibrated with, and which it is scored on. The three sets never meet."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from _accuracy.denoiser import denoiser, denoising_images
from slimilar.calibration.synthesis import synthesize
from slimilar.data.folder import image_folder
from slimilar.models.checkpoints import Pretrained, pretrained

SPLITS = ("test", "held-out")
CALIBRATION = {"cifar10": 1024, "cifar100": 1024, "imagenet": 256, "denoise": 128}
FIT = 45_000  # of CIFAR's training images: those before are for calibration, those behind are held out


@dataclass(frozen=True, eq=False)
class Task:
    """A trained network, unlabelled images to calibrate it with, and labelled ones to score it on."""

    name: str
    model: nn.Module
    calibration: Tensor
    x: Tensor
    y: Tensor
    seed: int

    @property
    def example(self) -> Tensor:
        """One image."""
        return self.calibration[:1]

    def synthesised(self) -> Tensor:
        """Return images made from the network alone; kept in the folder for temporary files."""
        file = Path(tempfile.gettempdir()) / "slimilar-accuracy" / f"{self.name}-{self.seed}.safetensors"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            save_file({"images": synthesize(self.model, self.example, seed=self.seed)}, file)
        return load_file(file)["images"]


def load(name: str, folder: Path, split: str, count: int, seed: int, images: int | None = None) -> Task:
    """Return a network with its images; `images` is the number to calibrate with."""
    if name == "dncnn-denoise":
        amount = images or CALIBRATION["denoise"]
        return Task(name, denoiser(folder), *denoising_images(folder, split, amount, seed), seed)
    found = pretrained(name, folder)
    read = _imagenet if found.dataset == "imagenet" else _cifar
    amount = images or CALIBRATION[found.dataset]
    return Task(name, found.model, *read(found, folder, split, count, seed, amount), seed)


def _cifar(
    found: Pretrained, folder: Path, split: str, count: int, seed: int, images: int
) -> tuple[Tensor, Tensor, Tensor]:
    data = np.load(folder / f"{found.dataset}.npz")
    train, labels = data["x_train"], data["y_train"]
    chosen = np.random.default_rng(seed).permutation(FIT)[:images]
    x, y = (data["x_test"], data["y_test"]) if split == "test" else (train[FIT:], labels[FIT:])
    calibration, scored = (
        found.normalisation.apply(torch.from_numpy(p)).contiguous() for p in (train[chosen], x[:count])
    )
    return calibration, scored, torch.from_numpy(y[:count]).long()


def _imagenet(
    found: Pretrained, folder: Path, split: str, count: int, seed: int, images: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Three images a class: the first for calibration, the second held out, the third for the test.

    More than a thousand calibration images take in the second ones: settings are then not chosen on them.
    """
    files = image_folder(folder / "imagenet").normalised(found.normalisation)
    turn = torch.tensor([int((files.labels[:i] == label).sum()) for i, label in enumerate(files.labels)])
    generator = torch.Generator().manual_seed(seed)
    pool = turn == 0 if images <= 1000 or split != "test" else turn < 2
    first = torch.nonzero(pool).flatten()
    first = first[torch.randperm(len(first), generator=generator)[:images]]
    scored = torch.nonzero(turn == (2 if split == "test" else 1)).flatten()[:count]
    x, y = files.batch(scored)
    return files.batch(first)[0], x, y
