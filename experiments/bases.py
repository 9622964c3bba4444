"""Networks that have to be trained before they can be pruned, because nobody has published them.

    python -m experiments.bases NAME... --data FOLDER [--runs runs/bases]

A killed training goes on where it was. The weights (kernels in half precision) go to ``experiments/bases/``
where they are small, else they stay in the folder of runs; how they were made goes to ``NAME.json`` beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from experiments.header import hardware, versions
from slimilar.data import Pictures, cifar
from slimilar.errors import DataError
from slimilar.files import replacing, write_text
from slimilar.models import VGG, PreResNet
from slimilar.models.checkpoints import load_state
from slimilar.names import choose
from slimilar.train import LAST, EpochRecord, Progress, Recipe, Result, Settings, evaluate, recipe, train
from slimilar.train.checkpoint import load_checkpoint, save_checkpoint, under

SEED = 0
FOLDER = Path(__file__).parent / "bases"
RUNS = Path("runs/bases")
SHIPPED = 3_000_000  # bytes; what is larger is made anew by whoever wants it


@dataclass(frozen=True)
class Base:
    """A network, the pictures it learns from, and how."""

    build: Callable[[], nn.Module]
    dataset: str
    recipe: Recipe
    stop: int | None = None  # leave the recipe after so many epochs, ...
    then: Recipe | None = None  # ... and end with this one


_SHORT = recipe("one-cycle")
BASES = {
    # The paper's own, in full: 160 epochs each.
    "vgg16-cifar10-full": Base(VGG, "cifar10", recipe("base")),
    "vgg16-cifar100-full": Base(partial(VGG, 100), "cifar100", recipe("base")),
    "preresnet110-cifar10": Base(PreResNet, "cifar10", recipe("base")),
    "preresnet110-cifar100": Base(partial(PreResNet, 110, 100), "cifar100", recipe("base")),
    # Slim and short-trained ones, for the small scale: minutes of one core.
    "preresnet20-cifar10": Base(
        partial(PreResNet, 20, 10, 0.75),
        "cifar10",
        replace(_SHORT, epochs=8),
        3,
        replace(_SHORT, epochs=1, lr=0.05),
    ),
    "vgg16-cifar100": Base(partial(VGG, 100, 0.25), "cifar100", replace(_SHORT, epochs=8)),
}


def load_base(name: str, runs: Path = RUNS) -> nn.Module:
    """Return a trained base network, in evaluation mode."""
    base = BASES[choose(name, list(BASES), "base")]
    for folder in (FOLDER, runs):
        file = folder / f"{name}.safetensors"
        if file.is_file():
            state = {k: v.float() if v.is_floating_point() else v for k, v in load_file(file).items()}
            return load_state(base.build(), state).eval()
    raise DataError(f"{name} has not been trained yet; run: python -m experiments.bases {name} --data FOLDER")


def make(name: str, data: Path, runs: Path = RUNS) -> Path:
    """Train a base network, or go on with it; write weights and record, and return where the weights are."""
    base = BASES[choose(name, list(BASES), "base")]
    pictures, test = (cifar(base.dataset, split, data) for split in ("train", "test"))
    torch.manual_seed(SEED)
    result = _trained(base, base.build(), pictures, test, runs / name)
    state = {
        k: (v.half() if v.ndim > 1 else v).contiguous()
        for k, v in result.model.state_dict().items()
        if not k.endswith("num_batches_tracked")
    }
    size = sum(v.numel() * v.element_size() for v in state.values())
    file = (FOLDER if size < SHIPPED else runs) / f"{name}.safetensors"
    with replacing(file) as unfinished:
        save_file(state, unfinished)
    score = evaluate(load_base(name, runs), test)
    record = {
        "command": f"python -m experiments.bases {name} --data FOLDER",
        "parameters": sum(p.numel() for p in result.model.parameters()),
        "data": f"{base.dataset}, all {len(pictures)} training pictures",
        "recipe": asdict(base.recipe),
        **({} if base.then is None else {"left after epochs": base.stop, "then": asdict(base.then)}),
        "seed": SEED,
        "test_accuracy": score.accuracy,
        "test_pictures": score.pictures,
        "history": [asdict(epoch) for epoch in result.history],
        "versions": versions(),
        "hardware": hardware(),
    }
    write_text(FOLDER / f"{name}.json", json.dumps(record, indent=1) + "\n")
    print(f"{name}: {score.accuracy:.2%} of {score.pictures} test pictures, {file}")
    return file


class _Enough(Exception):
    """Raised in the midst of a training that is not to be finished."""


def _trained(base: Base, model: nn.Module, pictures: Pictures, test: Pictures, folder: Path) -> Result:
    """Train by the recipe; where it is to be left early, by the second one from the weights of that epoch on."""
    settings = Settings(seed=SEED, save_every=100)

    def tell(event: Progress) -> None:
        _show(event)
        if base.stop is not None and event.epoch > base.stop:
            raise _Enough

    common: dict[str, Any] = {"test": test, "resume": True, "settings": settings}
    left = folder / "left.safetensors"
    if not left.exists():
        try:
            result = train(model, pictures, base.recipe, folder=folder, progress=tell, **common)
        except _Enough:
            tensors, info = load_checkpoint(folder / LAST)  # of the end of the epoch before
            save_checkpoint(left, under("model", tensors), {"history": info["history"]})
        else:
            return result
    tensors, info = load_checkpoint(left)
    model.load_state_dict(tensors)
    assert base.then is not None
    result = train(model, pictures, base.then, folder=folder / "then", progress=_show, **common)
    first = tuple(EpochRecord(**record) for record in info["history"])
    return replace(result, history=(*first, *result.history))


def _show(event: Progress) -> None:
    line = f"epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f}"
    line += f" accuracy {event.accuracy:.4f} {event.pictures_per_second:.0f} pictures/s"
    if event.test_accuracy is not None:
        line += f" | test {event.test_accuracy:.4f}"
    print(line, flush=True)


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
