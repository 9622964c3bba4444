"""The process of one version: reads questions from standard input, a line each, and answers in JSON.

It uses nothing but what all versions have: the public functions, and `slimilar.models.checkpoints`.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import numpy as np
import torch
from torch import nn

import slimilar

if Path(sys.argv[1]) not in Path(slimilar.__file__).parents:
    sys.exit(f"slimilar must come from {sys.argv[1]}, got {slimilar.__file__}")


def torchvision() -> Any:
    """Return torchvision, which each version imports from a place of its own."""
    for place in ("slimilar.utils.torchvision_compat", "slimilar._torchvision"):
        try:
            return importlib.import_module(place).import_torchvision()
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("torchvision")


def timed(network: str, call: str) -> dict[str, float]:
    """Return the processor time of a call on a torchvision network whose batch norms look trained."""
    torch.manual_seed(0)
    net: nn.Module = getattr(torchvision().models, network)(weights=None).eval()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.1, 1.5)
            nn.init.normal_(m.bias, 0, 0.5)
    names = {"slimilar": slimilar, "net": net, "x": torch.randn(1, 3, 224, 224)}
    start = time.process_time()
    eval(call, names)
    return {"seconds": time.process_time() - start}


def scored(checkpoint: str, folder: str, flops: float, images: int) -> dict[str, float]:
    """Return FLOPs and accuracy that pruning leaves."""
    from slimilar.models.checkpoints import pretrained

    found, data = pretrained(checkpoint, folder), np.load(Path(folder) / "cifar10.npz")
    read = [found.normalisation.apply(torch.from_numpy(data[n])) for n in ("x_train", "x_test")]
    some = read[0][torch.randperm(45_000, generator=torch.Generator().manual_seed(0))[:images]]
    x, y = read[1][:2000], torch.from_numpy(data["y_test"][:2000]).long()
    result = slimilar.prune(found.model, x[:1], flops=flops, calibration=some if images else None, round_to=1)
    with torch.no_grad():
        right = sum(
            int((result.model.eval()(a).argmax(1) == b).sum())
            for a, b in zip(x.split(500), y.split(500), strict=True)
        )
    count = slimilar.count(result.model, x[:1]).flops / slimilar.count(found.model, x[:1]).flops
    return {"flops": count, "accuracy": right / len(y)}


torch.set_num_threads(1)
for line in sys.stdin:
    question = json.loads(line)
    print(json.dumps(timed(**question) if "call" in question else scored(**question)), flush=True)
