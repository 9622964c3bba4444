"""Training recipes: epochs, batch size, learning-rate schedule, regularisation; and the named ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from slimilar.errors import InvalidInput
from slimilar.utils.suggestions import choose

Schedule = Literal["steps", "one-cycle"]


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum, a learning-rate schedule, and how to soften labels and average weights.

    ``"steps"`` divides the learning rate by 10 at each epoch of ``milestones``. ``"one-cycle"`` rises
    linearly for the first ``warmup`` share of the training, then falls to zero along a cosine. ``batch_size``
    counts the images of all processes together. ``ema`` is the decay of the averaged weights, None for no
    average. ``clip`` is the largest norm of a step's gradient; a larger one is scaled down. With
    ``freeze_statistics`` batch norms keep and use their means and variances, while scales and shifts are trained.
    Few and small batches estimate the statistics worse than a fit to images has left them, so with
    ``freeze_below_steps`` they are frozen only in a training of fewer steps than that. ``no_dropout`` turns
    dropout layers off in training: a pruned network has little to spare, and a fit was made without them. A training
    of fewer than ``full_rate_steps`` steps has a lower rate in proportion: it ends before a large one has paid. With
    ``mixup`` each image is blended with another one: a teacher that knows its training images by heart has more to tell
    of those. A short training has no time to gain by it, so with ``mixup_from_steps`` only one of so many steps that
    has a teacher blends its images.
    """

    epochs: int
    batch_size: int
    lr: float
    schedule: Schedule = "steps"
    milestones: tuple[int, ...] = ()
    warmup: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    ema: float | None = None
    clip: float | None = None
    freeze_statistics: bool = False
    no_dropout: bool = False
    full_rate_steps: int | None = None
    freeze_below_steps: int | None = None
    mixup: bool = False
    mixup_from_steps: int | None = None

    def __post_init__(self) -> None:
        problems = {
            "epochs must be at least 1": self.epochs < 1,
            "batch_size must be at least 1": self.batch_size < 1,
            "lr must be positive and finite": not (math.isfinite(self.lr) and self.lr > 0),
            f"schedule must be one of {get_args(Schedule)}": self.schedule not in get_args(Schedule),
            "warmup must be in [0, 1)": not 0 <= self.warmup < 1,
            "momentum must be in (0, 1)": not 0 < self.momentum < 1,
            "weight_decay must not be negative": self.weight_decay < 0,
            "label_smoothing must be in [0, 1)": not 0 <= self.label_smoothing < 1,
            "ema must be None or in (0, 1)": self.ema is not None and not 0 < self.ema < 1,
            "clip must be None or positive": self.clip is not None and not self.clip > 0,
            "full_rate_steps must be None or positive": self.full_rate_steps is not None
            and self.full_rate_steps < 1,
            "freeze_below_steps must be None or positive": self.freeze_below_steps is not None
            and self.freeze_below_steps < 1,
            "mixup_from_steps must be None or positive": self.mixup_from_steps is not None
            and self.mixup_from_steps < 1,
        }
        for problem, found in problems.items():
            if found:
                raise InvalidInput(f"{problem}, got {getattr(self, problem.split()[0])!r}; change the recipe")

    def terms(self) -> dict[str, Any]:
        """Return what must not change when a run is resumed.

        An option that is off is left out where older checkpoints do not hold it, so that they can be resumed.

        >>> "freeze_statistics" in RECIPES["quick"].terms()
        False
        """
        later = {
            "freeze_statistics": False,
            "no_dropout": False,
            "full_rate_steps": None,
            "freeze_below_steps": None,
            "mixup": False,
            "mixup_from_steps": None,
        }
        return {n: value for n, value in asdict(self).items() if n not in later or value is not later[n]}

    def on(self, steps: int) -> Recipe:
        """Return the recipe for epochs of so many steps: with rate, statistics and mixup of a training so long.

        >>> recipe = Recipe(2, 64, lr=0.03, full_rate_steps=400, freeze_below_steps=600, mixup_from_steps=900)
        >>> [(found.lr, found.freeze_statistics, found.mixup) for found in map(recipe.on, (50, 200, 500))]
        [(0.0075, True, False), (0.03, True, False), (0.03, False, True)]
        """
        total = self.epochs * steps
        share = 1.0 if self.full_rate_steps is None else min(1.0, total / self.full_rate_steps)
        frozen = self.freeze_statistics or (
            self.freeze_below_steps is not None and total < self.freeze_below_steps
        )
        mixup = self.mixup or (self.mixup_from_steps is not None and total >= self.mixup_from_steps)
        return replace(
            self, lr=self.lr * share, full_rate_steps=None, freeze_statistics=frozen, freeze_below_steps=None,
            mixup=mixup, mixup_from_steps=None,
        )  # fmt: skip

    def learning_rate(self, epoch: float) -> float:
        """Return the learning rate after ``epoch`` epochs; fractions of an epoch count where it is smooth.

        >>> [RECIPES["paper-resnet"].learning_rate(epoch) for epoch in (24, 25, 50)]
        [0.01, 0.001, 0.0001]
        """
        if self.schedule == "steps":
            return self.lr / float(10 ** bisect_right(sorted(self.milestones), epoch))
        done = epoch / self.epochs
        if done < self.warmup:
            return self.lr * (0.05 + 0.95 * done / self.warmup)
        return self.lr * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup))) / 2


# The paper, section 4.1: 'fine-tune the pruned models using SGD optimizer and batch size 64 for 60 epochs.
# Learning rate begins at 0.01, decays by 10 at 25, 50 epoch for ResNet and 30, 50 epoch for VGGNet. On
# ImageNet all training settings are kept the same except for a batch size 256.' It does not say how its
# networks were trained before pruning; 'base' is the training of Liu et al. (2017), whose networks they are.
RECIPES = MappingProxyType(
    {
        "paper-resnet": Recipe(epochs=60, batch_size=64, lr=0.01, milestones=(25, 50)),
        "paper-vgg": Recipe(epochs=60, batch_size=64, lr=0.01, milestones=(30, 50)),
        "paper-imagenet": Recipe(epochs=60, batch_size=256, lr=0.01, milestones=(25, 50)),
        "base": Recipe(epochs=160, batch_size=64, lr=0.1, milestones=(80, 120)),
        "base-imagenet": Recipe(epochs=90, batch_size=256, lr=0.1, milestones=(30, 60)),
        "one-cycle": Recipe(
            epochs=30,
            batch_size=128,
            lr=0.1,
            schedule="one-cycle",
            warmup=0.2,
            weight_decay=5e-4,
            label_smoothing=0.1,
        ),
        # Trained networks have small kernels before batch norms, so gradients are large: unclipped, the first steps
        # at this rate undo what a fit has kept, and a short training does not recover it.
        "quick": Recipe(epochs=3, batch_size=64, lr=0.01, schedule="one-cycle", warmup=0.1, clip=1.0),
        # New statistics of small batches undo more of a fit to images than a short training mends, and so do large
        # rates within a few dozen steps; in 900 steps, new statistics are the better ones. Chosen on ResNet-56 with
        # CIFAR-100 (benchmarks/results/finetune.md). There, with a teacher, mixup lost 0.7 points in 300 steps, and
        # gained 0.3 in 900 and 0.4 in 3,000. The fit was made without dropout; what that does has not been measured.
        "reconstructed": Recipe(
            epochs=3,
            batch_size=64,
            lr=0.03,
            schedule="one-cycle",
            warmup=0.1,
            clip=1.0,
            no_dropout=True,
            full_rate_steps=100,
            freeze_below_steps=500,
            mixup_from_steps=900,
        ),
    }
)


def recipe(name: str) -> Recipe:
    """Return the recipe of that name; ``dataclasses.replace`` makes a variation of it."""
    return RECIPES[choose(name, list(RECIPES), "recipe")]
