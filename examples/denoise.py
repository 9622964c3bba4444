"""Prune a denoiser with noisy images alone, then let it learn from the original for a few steps.

    python examples/denoise.py --weights dncnn.safetensors --images photos --flops 0.5

No clean image is used to prune or to train, only to measure: on the last quarter of the photos.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import slimilar
from slimilar.data import unlabelled

SIGMA = 25 / 255


def dncnn(depth: int = 17, width: int = 64) -> nn.Sequential:
    """Return a network that finds the noise in grey images."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1, bias=False)).eval()


def psnr(model: nn.Module, noisy: Tensor, clean: Tensor) -> float:
    with torch.no_grad():
        error = (noisy - model(noisy) - clean).square().flatten(1).mean(1)
    return float((-10 * error.log10()).mean())


def distilled(small: nn.Module, original: nn.Module, noisy: Tensor, steps: int) -> nn.Module:
    """Return a copy that has learnt what the original returns; in evaluation mode batch norms keep their statistics."""
    student = copy.deepcopy(small).eval()
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-4)
    for _ in range(steps):
        batch = noisy[torch.randperm(len(noisy))[:16]]
        with torch.no_grad():
            wanted = original(batch)
        loss = nn.functional.mse_loss(student(batch), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return student


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, help="random weights without")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--flops", type=float, default=0.5)
    parser.add_argument("--depth", type=int, default=17)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = dncnn(args.depth)
    if args.weights:
        state = load_file(args.weights)
        model.load_state_dict({name.removeprefix("dncnn."): tensor for name, tensor in state.items()})
    clean = unlabelled(args.images, size=64).images.float().mean(3)[:, None] / 255  # grey, in [0, 1]
    noisy = clean + SIGMA * torch.randn(clean.shape)
    last = 3 * len(noisy) // 4
    result = slimilar.prune(model, noisy[:1], flops=args.flops, calibration=noisy[:last])
    tuned = distilled(result.model, model, noisy[:last], args.steps)
    for name, network in {"original": model, "pruned": result.model, "distilled": tuned}.items():
        print(f"{name:<10} {psnr(network, noisy[last:], clean[last:]):.2f} dB")
    slimilar.save(tuned, "denoiser-small.safetensors")


if __name__ == "__main__":
    main()
