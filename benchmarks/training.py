"""What training costs beyond a bare PyTorch loop, and what of it is the making of batches.

    python benchmarks/training.py > benchmarks/results/training.txt

``train()`` runs as users run it: augmented batches, log, checkpoint folder. After every few of its steps the
same number of bare steps (forward, loss, backward, SGD on a batch that is always the same and ready) is run on a copy
of the network, so that both see the same machine. Printed is the median over pairs of such blocks, in CPU
seconds of one thread, which other programs on the machine disturb less than the clock.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time

import torch
from _results import print_header
from torch import nn
from torch.nn import functional as F

from slimilar.data import Images
from slimilar.models import build
from slimilar.train import Hooks, Recipe, TrainingSettings, train
from slimilar.train.batches import Epoch

SEED, BATCH, BLOCK, BLOCKS = 0, 128, 2, 16
NETWORKS = (("resnet20", 1.0), ("vgg16", 0.25), ("preresnet110", 0.25))


class Bare:
    """The loop of a tutorial."""

    def __init__(self, model: nn.Module, images: Images) -> None:
        # torch's annotations do not know the argument
        self.model: nn.Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.train()
        self.optimiser = torch.optim.SGD(self.model.parameters(), 0.1, 0.9, weight_decay=1e-4, nesterov=True)
        self.images, self.labels = images.batch(torch.arange(BATCH))

    def step(self) -> None:
        self.optimiser.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimiser.step()


def measured(model: nn.Module, images: Images) -> list[tuple[float, float]]:
    """Return the CPU seconds of blocks of steps, ours and bare, interleaved."""
    bare, pairs, steps = Bare(model, images), [], 0
    began = time.process_time()

    def interleave(network: nn.Module, lr: float) -> None:
        nonlocal steps, began
        steps += 1
        if steps % BLOCK:
            return
        ours, start = time.process_time() - began, time.process_time()
        with torch.enable_grad():
            for _ in range(BLOCK):
                bare.step()
        began = time.process_time()
        pairs.append((ours, began - start))

    recipe = Recipe(epochs=1, batch_size=BATCH, lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingSettings(seed=SEED, log_every=10)
        train(model, images, recipe, folder=folder, hooks=Hooks(after_step=interleave), settings=settings)
    return pairs[2:]  # the first blocks warm up


def batch_seconds(images: Images) -> float:
    epoch = Epoch(images, BATCH, SEED, 0)
    epoch[0]
    start = time.process_time()
    for step in range(BLOCKS):
        epoch[step]
    return (time.process_time() - start) / BLOCKS


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    count = BATCH * BLOCK * BLOCKS
    pixels = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8)
    images = Images(pixels, torch.randint(0, 10, (count,)))
    print_header("python benchmarks/training.py", SEED)
    print(f"# batch     {BATCH} images\n")
    print(
        f"{'network':<14}{'width':>6}{'bare, images/s':>18}{'ours, images/s':>18}{'ours : bare':>13}{'batches':>9}"
    )
    for name, width in NETWORKS:
        pairs = measured(build(name, 10, width), images)
        bare = statistics.median(bare for _, bare in pairs) / BLOCK
        ratio = statistics.median(ours / bare for ours, bare in pairs)
        share = batch_seconds(images) / (bare * ratio)
        print(
            f"{name:<14}{width:>6}{BATCH / bare:>18.0f}{BATCH / bare / ratio:>18.0f}{1 / ratio:>13.3f}{share:>9.1%}",
            flush=True,
        )
    print("\n'ours : bare' is the throughput of train() by that of the bare loop; 'batches' the share of")
    print("train()'s time in which batches are drawn, cropped, flipped and normalised.")


if __name__ == "__main__":
    main()
