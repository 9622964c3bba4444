"""The denoiser: PSNR on Set68, and the strip of pictures in the documentation."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import torch
from _accuracy.denoiser import DnCNN, psnr
from _accuracy.images import Task, load
from PIL import Image, ImageDraw
from torch import Tensor, nn

import slimilar
from _tasks.case import Case, Scores

BUDGETS = (0.7, 0.5, 0.3)
PICTURE = 2  # of Set68, by number
_GAP, _LINE = 8, 30  # pixels between pictures, and of the words below them


def case(folder: Path, seed: int) -> Case:
    """Return the denoiser with 128 noisy crops of 64 pixels, and the 68 noisy images it is scored on."""
    task = load("dncnn-denoise", folder, "test", 68, seed)

    @cache
    def before() -> Tensor:
        return outputs(task.model, task.x)

    def score(model: nn.Module) -> Scores:
        given = before() if model is task.model else outputs(model, task.x)
        gap = (given - before()).square().sum() / before().square().sum()
        return {"psnr": round(psnr(given, task.y), 3), "agreement": round(100 * float(1 - gap), 2)}

    return Case(task, BUDGETS, score)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the noise that a network finds in images, one by one and channels last: half the time on a CPU."""
    quick = copy.deepcopy(model).to(memory_format=torch.channels_last)
    return torch.cat([quick(part) for part in x.split(1)])


def strip(task: Task, kept: Path, file: Path) -> None:
    """Write one image side by side: noisy, and as the original and each pruned network leave it; its PSNR below."""
    x, noise = task.x[PICTURE : PICTURE + 1], task.y[PICTURE : PICTURE + 1]
    shown = {f"noisy: {psnr(torch.zeros_like(noise), noise):.2f} dB": x}
    for words, model in _networks(task, kept).items():
        found = outputs(model, x)
        shown[f"{words}: {psnr(found, noise):.2f} dB"] = x - found
    file.parent.mkdir(parents=True, exist_ok=True)
    _side_by_side(shown).save(file, optimize=True)


def _networks(task: Task, kept: Path) -> dict[str, nn.Module]:
    """Return the original, and the pruned networks that were kept, by what they are called in the picture."""
    found = {"original": task.model}
    for flops in BUDGETS:
        file = kept / f"{task.name}-{flops}-auto-{task.seed}.safetensors"
        if file.exists():
            found[f"{flops:.0%} of FLOPs"] = slimilar.load(file, DnCNN())
    return found


def _side_by_side(shown: dict[str, Tensor]) -> Image.Image:
    side = 2 * next(iter(shown.values())).shape[-1]  # at twice their size
    canvas = Image.new("L", (len(shown) * (side + _GAP) - _GAP, side + _LINE), 255)
    draw = ImageDraw.Draw(canvas)
    for i, (words, image) in enumerate(shown.items()):
        grey = (255 * image[0, 0]).round().clamp(0, 255).byte().numpy()
        left = i * (side + _GAP)
        canvas.paste(Image.fromarray(grey).resize((side, side), Image.Resampling.BICUBIC), (left, 0))
        draw.text((left + 2, side + 4), words, fill=0, font_size=18)
    return canvas
