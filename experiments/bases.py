"""Base networks that have no published checkpoint and are trained here before they are pruned.

    python -m experiments.bases NAME... --data FOLDER [--runs runs/bases]

A killed training is resumed. The weights (kernels in half precision) go to ``experiments/bases/``
where they are small, else they stay in the folder of runs; how they were made goes to ``NAME.json`` beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from experiments.progress import show_progress
from experiments.provenance import commit, work_folder
from slimilar.data import cifar
from slimilar.errors import DataError
from slimilar.models import VGG, PreResNet
from slimilar.models.checkpoints import half_precision, load_state, single_precision
from slimilar.train import Recipe, TrainingSettings, evaluate, recipe, train
from slimilar.utils.atomic import replacing, write_text
from slimilar.utils.provenance import hardware, versions
from slimilar.utils.suggestions import choose

SEED = 0
FOLDER = Path(__file__).parent / "bases"
RUNS = work_folder() / "bases"
SHIPPED = 3_000_000  # bytes; larger ones are not committed


@dataclass(frozen=True)
class Base:
    """A network, the images it learns from, and how."""

    build: Callable[[], nn.Module]
    dataset: str
    recipe: Recipe


_SHORT = recipe("one-cycle")
BASES = {
    # The paper's own, in full: 160 epochs each.
    "vgg16-cifar10-full": Base(VGG, "cifar10", recipe("base")),
    "vgg16-cifar100-full": Base(partial(VGG, 100), "cifar100", recipe("base")),
    "preresnet110-cifar10": Base(PreResNet, "cifar10", recipe("base")),
    "preresnet110-cifar100": Base(partial(PreResNet, 110, 100), "cifar100", recipe("base")),
    # For the medium scale: a quarter of those epochs in one cycle, with more weight decay. Hours of one core.
    "preresnet29-cifar10": Base(
        partial(PreResNet, 29),
        "cifar10",
        replace(
            recipe("base"), epochs=40, schedule="one-cycle", milestones=(), warmup=0.2, weight_decay=5e-4
        ),
    ),
    # Slim and short-trained ones, for the small scale: minutes of one core.
    "preresnet20-cifar10": Base(partial(PreResNet, 20, 10, 0.75), "cifar10", replace(_SHORT, epochs=8)),
    "vgg16-cifar100": Base(partial(VGG, 100, 0.25), "cifar100", replace(_SHORT, epochs=8)),
}


def load_base(name: str, runs: Path = RUNS) -> nn.Module:
    """Return a trained base network, in evaluation mode."""
    base = BASES[choose(name, list(BASES), "base")]
    for folder in (FOLDER, runs):
        file = folder / f"{name}.safetensors"
        if file.is_file():
            return load_state(base.build(), single_precision(load_file(file))).eval()
    raise DataError(f"{name} has not been trained yet; run: python -m experiments.bases {name} --data FOLDER")


def make(name: str, data: Path, runs: Path = RUNS) -> Path:
    """Train a base network, or resume its training; write weights and record, and return the path of the weights."""
    base = BASES[choose(name, list(BASES), "base")]
    images, test = (cifar(base.dataset, split, data) for split in ("train", "test"))
    running = commit()  # asked now: it may change during a long training
    torch.manual_seed(SEED)
    result = train(
        base.build(), images, base.recipe, test=test, folder=runs / name, resume=True,
        settings=TrainingSettings(seed=SEED, save_every=100), progress=show_progress,
    )  # fmt: skip
    state = half_precision(result.model)
    size = sum(v.numel() * v.element_size() for v in state.values())
    file = (FOLDER if size < SHIPPED else runs) / f"{name}.safetensors"
    with replacing(file) as unfinished:
        save_file(state, unfinished)
    score = evaluate(load_base(name, runs), test)
    record = {
        "command": f"python -m experiments.bases {name} --data FOLDER",
        "parameters": sum(p.numel() for p in result.model.parameters()),
        "data": f"{base.dataset}, all {len(images)} training images",
        "recipe": asdict(base.recipe),
        "seed": SEED,
        "test_accuracy": score.accuracy,
        "test_images": score.images,
        "history": [asdict(epoch) for epoch in result.history],
        "versions": versions(),
        "commit": running,
        "hardware": hardware(),
    }
    write_text(FOLDER / f"{name}.json", json.dumps(record, indent=1) + "\n")
    print(f"{name}: {score.accuracy:.2%} of {score.images} test images, {file}")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(BASES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=RUNS)
    args = parser.parse_args()
    for name in args.names:
        make(name, args.data, args.runs)


if __name__ == "__main__":
    main()
