"""How large an experiment is: the paper's settings, a third of its fine-tuning, a small copy, and a tiny one.

What an experiment alone needs stands as a table in its own module, by the names of these scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from slimilar.train import Recipe, recipe
from slimilar.utils.suggestions import choose


@dataclass(frozen=True)
class Scale:
    """Images and training, the same for every method and every experiment; None stands for all images."""

    name: str
    about: str
    train: int | None
    test: int | None
    calibration: int  # unlabelled training images that an experiment may look at
    batch: int  # images at once where a network is only looked at
    recipes: Mapping[str, Recipe]  # by kind of network
    fitted: Recipe | None = None  # of networks whose consumers were fitted to images; None: as all others
    sparse: Recipe | None = None  # of training phases before pruning; None: as the fine-tuning
    seeds: tuple[int, ...] | None = None  # of compared methods; None: that of the run
    score_epochs: bool = False  # whether the test accuracy after every epoch is recorded

    def recipe(self, kind: str, fitted: bool = False) -> Recipe:
        """Return how a kind of network (vgg, resnet, imagenet) is fine-tuned."""
        return self.fitted if fitted and self.fitted is not None else self.recipes[kind]


# Learning rates and frozen statistics were chosen on held-out training images: see short_recipe.py.
_SHORT = replace(recipe("quick"), epochs=2, batch_size=32, lr=0.03)
_FITTED = replace(_SHORT, lr=0.003, freeze_statistics=True)
# A third of the paper's epochs, with its learning rates at the same shares of the training.
_THIRD = {kind: recipe(f"paper-{kind}") for kind in ("vgg", "resnet", "imagenet")}
_THIRD = {
    kind: replace(r, epochs=r.epochs // 3, milestones=tuple(round(m / 3) for m in r.milestones))
    for kind, r in _THIRD.items()
}
# NS and SSL need large steps: what a penalty removes of a weight is at most its strength times the sum of rates.
_SPARSE = replace(recipe("paper-vgg"), epochs=10, lr=0.1, schedule="one-cycle", milestones=(), warmup=0.1)
SCALES = MappingProxyType(
    {
        "paper": Scale(
            "paper", "the paper's settings: all images, 60 epochs of fine-tuning",
            None, None, 1024, 250,
            {kind: recipe(f"paper-{kind}") for kind in ("vgg", "resnet", "imagenet")},
        ),
        "medium": Scale(
            "medium", "CIFAR-10 with 45,000 training and all test images, 20 epochs of fine-tuning",
            45_000, None, 1024, 250,
            _THIRD, sparse=_SPARSE, seeds=(0, 1), score_epochs=True,
        ),
        "small": Scale(
            "small", "published checkpoints, 1,280 training and 1,000 test images, two short epochs",
            1280, 1000, 256, 100,
            dict.fromkeys(("vgg", "resnet", "imagenet"), _SHORT), _FITTED,
        ),
        "tiny": Scale(
            "tiny", "the shipped network and its images, one short epoch; seconds, and no data needed",
            64, 100, 32, 50,
            dict.fromkeys(("vgg", "resnet", "imagenet"), replace(_SHORT, epochs=1)),
            replace(_FITTED, epochs=1),
        ),
    }
)  # fmt: skip


def scale_of(name: str) -> Scale:
    """Return a scale by its name."""
    return SCALES[choose(name, list(SCALES), "scale")]
