"""How long pruning with images takes, where the time goes, and how much memory it needs.

    python benchmarks/calibrated_time.py --data FOLDER [--threads 2] > benchmarks/results/calibrated_time.txt

`prune()` with all on automatic and any width, from model and images to the verified result: ImageNet networks with 256
images of 224 pixels at 75 % of their FLOPs, the denoiser with 128 crops of 64 pixels at half. EfficientNet-B0 has
random weights and random images, so that its time is told and nothing else. Each network in a process of its own;
memory is the largest beyond model and images. The goals are 90 seconds and 3 GiB, for the denoiser 30 seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from _accuracy.images import load
from _memory import growth
from _results import print_header
from torch import Tensor, nn

import slimilar
from slimilar.utils.torchvision_compat import import_torchvision

SEED = 0
BUDGETS = {
    "mobilenetv2-imagenet": 0.75,
    "efficientnet-lite0-imagenet": 0.75,
    "efficientnet-b0-random": 0.75,
    "resnet50-imagenet": 0.75,
    "dncnn-denoise": 0.5,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--network", choices=BUDGETS, help="run this one here, and print its numbers as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.network:
        print(json.dumps(_measured(args.network, args.data)))
        return
    print_header(f"python benchmarks/calibrated_time.py --data FOLDER --threads {args.threads}", SEED)
    for network, share in BUDGETS.items():
        words = [
            sys.executable, __file__, "--data", str(args.data), "--threads", str(args.threads), "--network", network,
        ]  # fmt: skip
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        print(f"\n{network} at {share:.0%} of its FLOPs: {found['seconds']:.0f} s, {found['cpu']:.0f} CPU s, "
              f"{found['mib'] / 1024:.1f} GiB")  # fmt: skip
        for stage, seconds in found["stages"].items():
            print(f"  {seconds:6.1f} s  {stage}", flush=True)


def _measured(network: str, data: Path) -> dict[str, object]:
    model, images = _given(network, data)
    grown, start, cpu = growth(), time.perf_counter(), time.process_time()
    stages: dict[str, float] = {}
    last = [start]

    def progress(title: str, *_: int) -> None:
        """Count the time since the last report for the stage that now reports what it has done."""
        now = time.perf_counter()
        stages[title] = stages.get(title, 0.0) + now - last[0]
        last[0] = now

    slimilar.prune(
        model,
        images[:1],
        flops=BUDGETS[network],
        round_to=1,
        calibration=images,
        seed=SEED,
        progress=progress,
    )
    end = time.perf_counter()
    stages["verification"] = end - last[0]
    return {"seconds": end - start, "cpu": time.process_time() - cpu, "mib": grown(), "stages": stages}


def _given(network: str, data: Path) -> tuple[nn.Module, Tensor]:
    """Return a network and its calibration images."""
    if network == "efficientnet-b0-random":
        torch.manual_seed(SEED)
        return import_torchvision().models.efficientnet_b0(weights=None).eval(), torch.rand(256, 3, 224, 224)
    task = load(network, data, "held-out", 1, SEED)
    return task.model, task.calibration


if __name__ == "__main__":
    main()
