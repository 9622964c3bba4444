"""A denoiser and its images: DnCNN for Gaussian noise of sigma 25/255, which predicts the noise (github SaoYan)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from slimilar.models.checkpoints import load_state

SIGMA = 25 / 255
CROP, SCORED = 64, 160  # pixels: calibration crops, and centre crops to score on
HELD_OUT = 100  # of the training images, the last: never calibrated with


class DnCNN(nn.Module):
    """17 convolutions of 64 channels, batch norms between them, no biases."""

    def __init__(self, depth: int = 17, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.dncnn = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Return the noise in grey images."""
        noise: Tensor = self.dncnn(x)
        return noise


def denoiser(folder: Path) -> nn.Module:
    """Return the trained network."""
    return load_state(DnCNN(), load_file(folder / "dncnn.safetensors")).eval()


def denoising_images(folder: Path, split: str, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy crops to calibrate with, noisy images to score on, and the noise in them."""
    files = sorted((folder / "denoise" / "train").glob("*.png"))
    scored = sorted((folder / "denoise" / "set68").glob("*.png")) if split == "test" else files[-HELD_OUT:]
    random = np.random.default_rng(seed)
    crops = [_crop(_read(files[i]), random) for i in random.integers(0, len(files) - HELD_OUT, count)]
    clean = torch.stack([_centre(_read(file)) for file in scored])
    noise = SIGMA * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    fitted = torch.stack(crops)
    drawn = SIGMA * torch.randn(fitted.shape, generator=torch.Generator().manual_seed(seed + 1))
    return fitted + drawn, clean + noise, noise


def psnr(given: Tensor, noise: Tensor) -> float:
    """Return the mean peak signal-to-noise ratio of images from which the predicted noise is taken, in dB."""
    error = (given - noise).square().flatten(1).mean(1)
    return float((-10 * error.log10()).mean())


def _read(file: Path) -> Tensor:
    with Image.open(file) as image:
        return torch.from_numpy(np.asarray(image.convert("L"), np.float32) / 255)[None]


def _crop(image: Tensor, random: np.random.Generator) -> Tensor:
    top, left = (int(random.integers(0, size - CROP + 1)) for size in image.shape[1:])
    return image[:, top : top + CROP, left : left + CROP]


def _centre(image: Tensor) -> Tensor:
    size = min(SCORED, *image.shape[1:])
    top, left = ((whole - size) // 2 for whole in image.shape[1:])
    return image[:, top : top + size, left : left + size]
