"""A subject that other processes can open: a small network for handwritten digits, trained for a moment."""

from __future__ import annotations

import functools

import torch

from _digits import digits, network
from slimilar.comparison import Subject, Terms
from slimilar.train import Recipe, Settings, train

RECIPE = Recipe(epochs=1, batch_size=32, lr=0.02)
TERMS = Terms(
    ("similarity", "magnitude-l1", "span"), ("0.7", "0.5"), ("own", "linear"), recipe=RECIPE, pictures=64
)


@functools.cache
def subject() -> Subject:
    """Return the network as it is after two epochs, and digits to go on with."""
    settings = Settings(tensorboard=False)
    recipe = Recipe(epochs=2, batch_size=32, lr=0.05)
    model = train(network(), digits(0, 300), recipe, settings=settings).model
    return Subject(model, torch.zeros(1, 1, 8, 8), digits(0, 300), digits(1200))
