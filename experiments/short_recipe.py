"""Choose the small scale's fine-tuning on training images that it does not train on.

    python -m experiments.short_recipe --data FOLDER

The paper's rate of 0.01 is for 60 epochs; in the few steps of the small scale it may harm more than it helps, as
may statistics of batch norms that are estimated again from small batches. Networks are pruned by similarity,
plainly and with a fit to unlabelled images, fine-tuned at several rates with and without frozen statistics, and
scored on held-out *training* images; test images are not used. What has the best mean over the networks was entered
in `scales.py` by hand; the rows are in `results/short_recipe.jsonl`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import slimilar
from experiments.catalogue import RESULTS
from experiments.experiment import ExperimentRun, TrainedNetwork
from experiments.provenance import header, opened
from experiments.scales import SCALES
from slimilar.data import Images
from slimilar.pipeline import apply
from slimilar.train import Recipe, TrainingSettings, evaluate, finetune, recipe

NETWORKS = ("resnet20-cifar10", "vgg16-cifar10")
SUBSTITUTES = ("none", "linear")
CUT, MAX_IMAGES, TRAIN, HELD_OUT = 0.6, 1024, 1280, 500
RATES = (0.03, 0.01, 0.003)
RECIPE = replace(recipe("quick"), epochs=2, batch_size=32)


def _pruned(network: TrainedNetwork, how: str) -> nn.Module:
    plan = slimilar.analyze(network.model, network.example, criterion="similarity", residual=network.residual)
    return apply(
        network.model, network.example, plan, plan.at(flops=1 - CUT, round_to=1), substitute=how,
        calibration=network.images if how == "linear" else None, verify=False,
    ).model  # fmt: skip


def _score(small: Callable[[], nn.Module], train: Images, held_out: Images, recipe: Recipe) -> dict[str, Any]:
    """Return accuracies on held-out training images before and after fine-tuning."""
    tuned = finetune(small(), train, recipe, settings=TrainingSettings(seed=0)).model
    before, after = (round(100 * evaluate(m, held_out, 100).accuracy, 2) for m in (small(), tuned))
    return {"before": before, "after": after}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    settings = {
        "cut": CUT, "recipe": asdict(RECIPE), "images": MAX_IMAGES, "train": TRAIN, "held out": HELD_OUT,
        "rates": RATES,
    }  # fmt: skip
    about = header("python -m experiments.short_recipe --data FOLDER", 0) | {"settings": settings}
    ledger = opened(RESULTS / "short_recipe.jsonl", about)
    # Drawn by the same seed: the first ones are those that the experiments train on.
    scale = replace(SCALES["small"], train=TRAIN + HELD_OUT, calibration=MAX_IMAGES)
    experiment = ExperimentRun(scale, None, ledger, args.data)
    for how, name in product(SUBSTITUTES, NETWORKS):  # plain removal first: fitting takes longer
        network = experiment.network(name)
        assert isinstance(network.train, Images)
        rest = torch.arange(TRAIN, TRAIN + HELD_OUT)
        held_out = replace(
            network.train, images=network.train.images[rest], labels=network.train.labels[rest]
        )
        small = cache(partial(_pruned, network, how))
        for rate, freeze in product(RATES, (False, True)):
            key = {"network": name, "substitute": how, "rate": rate, "freeze_statistics": freeze}
            tuning = replace(RECIPE, lr=rate, freeze_statistics=freeze)
            ledger.row(key, partial(_score, small, network.train.first(TRAIN), held_out, tuning))


if __name__ == "__main__":
    main()
