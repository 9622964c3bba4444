"""A subject that other processes can open, small and trained for a moment, and what two comparisons have alike."""

from __future__ import annotations

import functools
from dataclasses import asdict

import torch

from helpers.digits import digits, network
from slimilar.comparison import Comparison, Subject, Terms
from slimilar.train import Recipe, TrainingSettings, train

RECIPE = Recipe(epochs=1, batch_size=32, lr=0.02)
TERMS = Terms(
    ("similarity", "magnitude-l1", "span"), ("0.7", "0.5"), ("own", "linear"), recipe=RECIPE, images=64
)
CLOCKS = ("prepare_seconds", "choose_seconds", "prune_seconds", "train_seconds", "resumed")


@functools.cache
def subject() -> Subject:
    """Return a network trained for two epochs, and the digits for further training."""
    settings = TrainingSettings(tensorboard=False)
    recipe = Recipe(epochs=2, batch_size=32, lr=0.05)
    model = train(network(), digits(0, 300), recipe, settings=settings).model
    return Subject(model, torch.zeros(1, 1, 8, 8), digits(0, 300), digits(1200))


def plain(found: Comparison) -> dict[str, dict[str, object]]:
    """Return rows without what the clock says."""
    return {row.key: {k: v for k, v in asdict(row).items() if k not in CLOCKS} for row in found.rows}
