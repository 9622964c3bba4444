"""A short training on digits, which several files of tests start from."""

from __future__ import annotations

from helpers.digits import digits
from slimilar.train import Recipe, TrainingSettings

TRAIN, TEST = digits(0, 600), digits(1200)
SHORT = Recipe(epochs=2, batch_size=32, lr=0.1, schedule="one-cycle", warmup=0.2)
QUIET = TrainingSettings(tensorboard=False)
