"""Prune a segmentation network of torchvision with unlabelled images; count the pixels that it still labels as before.

    python examples/segment.py lraspp_mobilenet_v3_large --weights weights.pth --images photos --flops 0.6

Three quarters of the images calibrate, the others are compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import slimilar
from slimilar.data import unlabelled
from slimilar.utils.torchvision_compat import import_torchvision


@torch.no_grad()
def classes(model: nn.Module, images: Tensor) -> Tensor:
    """Return the class of every pixel."""
    return model(images)["out"].argmax(1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--weights", type=Path, help="a state dict; random weights without")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--flops", type=float, default=0.6)
    parser.add_argument("--size", type=int, default=320)
    args = parser.parse_args(arguments)
    networks = import_torchvision("torchvision.models.segmentation")  # also beside a CPU build of torch
    model = getattr(networks, args.model)(weights=None, weights_backbone=None).eval()
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    images = unlabelled(args.images, size=args.size).tensor()
    calibration, held_out = images[: 3 * len(images) // 4], images[3 * len(images) // 4 :]
    result = slimilar.prune(model, images[:1], flops=args.flops, calibration=calibration)
    print(result.summary())
    same = classes(model, held_out) == classes(result.model, held_out)
    print(f"pixels with the same class: {same.float().mean():.1%}")
    slimilar.save(result, "segmentation-small.safetensors")  # slimilar.load(file, a fresh network)


if __name__ == "__main__":
    main()
