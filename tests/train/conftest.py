"""A trained network that several files look at."""

from __future__ import annotations

import pytest

from helpers.digits import digits, network
from slimilar.train import Recipe, TrainingResult, train


@pytest.fixture(scope="session")
def trained() -> TrainingResult:
    recipe = Recipe(epochs=5, batch_size=32, lr=0.1, schedule="one-cycle", warmup=0.2)
    return train(network(), digits(0, 600), recipe, test=digits(1200))
