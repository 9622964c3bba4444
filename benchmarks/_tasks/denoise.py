"""The denoiser: PSNR on Set68, and the strip of pictures in the documentation."""

from __future__ import annotations

from pathlib import Path

import torch
from _accuracy.denoiser import psnr
from _accuracy.images import Task, load
from PIL import Image, ImageDraw
from torch import Tensor, nn

from _tasks.case import Case, Scores

BUDGETS = (0.7, 0.5, 0.3)
PICTURE = 2  # of Set68, by number
_GAP, _LINE = 6, 16  # pixels between pictures, and of the words below them


def case(folder: Path, seed: int) -> Case:
    """Return the denoiser with 128 noisy crops of 64 pixels, and the 68 noisy images it is scored on."""
    task = load("dncnn-denoise", folder, "test", 68, seed)
    before = outputs(task.model, task.x)

    def score(model: nn.Module) -> Scores:
        given = outputs(model, task.x)
        gap = (given - before).square().sum() / before.square().sum()
        return {"psnr": round(psnr(given, task.y), 3), "agreement": round(100 * float(1 - gap), 2)}

    return Case(task, BUDGETS, score)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the noise that a network finds in images."""
    return torch.cat([model(part) for part in x.split(4)])


def strip(task: Task, networks: dict[str, nn.Module], file: Path) -> None:
    """Write one image side by side: noisy, clean, and as each network leaves it, its PSNR below."""
    x, noise = task.x[PICTURE : PICTURE + 1], task.y[PICTURE : PICTURE + 1]
    shown = {f"noisy, {psnr(torch.zeros_like(noise), noise):.1f} dB": x, "clean": x - noise}
    for words, model in networks.items():
        found = outputs(model, x)
        shown[f"{words}, {psnr(found, noise):.1f} dB"] = x - found
    side = 2 * x.shape[-1]  # shown at twice its size
    canvas = Image.new("L", (len(shown) * (side + _GAP) - _GAP, side + _LINE), 255)
    draw = ImageDraw.Draw(canvas)
    for i, (words, image) in enumerate(shown.items()):
        grey = (255 * image[0, 0]).round().clamp(0, 255).byte().numpy()
        canvas.paste(
            Image.fromarray(grey).resize((side, side), Image.Resampling.BICUBIC), (i * (side + _GAP), 0)
        )
        draw.text((i * (side + _GAP) + 2, side + 3), words, fill=0)
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(file, optimize=True)
