"""The ways to fine-tune that are compared, the variations their settings were chosen among, and the order of runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from slimilar.train import Distillation, Recipe, recipe

FLOPS = {"vgg16-cifar10": 0.33, "resnet56-cifar10": 0.5}
# Settings are chosen on another network, and on test images that no result is reported on: the checkpoints were trained
# on all training images, so that those held out here favour a fine-tuning which changes little.
CHOICE, CHOICE_FLOPS = "resnet56-cifar100", 0.5
RIVALS = ("none", "grail", "torch-pruning", "folding")


@dataclass(frozen=True)
class Tuning:
    """A recipe, and how much is learnt from the network before pruning: None nothing, 1 all and no labels."""

    recipe: Recipe
    teacher: float | None = None

    @property
    def distillation(self) -> Distillation:
        """The weight of the teacher's scores."""
        return Distillation() if self.teacher is None else Distillation(weight=self.teacher)


QUICK = recipe("quick")
_CALM = replace(QUICK, freeze_statistics=True, no_dropout=True)
VARIATIONS = {  # what is chosen among
    **{f"plain {lr}": Tuning(replace(QUICK, lr=lr)) for lr in (0.01, 0.03, 0.1)},
    **{f"taught {lr}": Tuning(replace(QUICK, lr=lr), 0.7) for lr in (0.01, 0.03, 0.1)},
    "taught 0.03, mixup": Tuning(replace(QUICK, lr=0.03, mixup=True), 0.7),
    "taught 0.1, mixup": Tuning(replace(QUICK, lr=0.1, mixup=True), 0.7),
    "teacher alone 0.03, mixup": Tuning(replace(QUICK, lr=0.03, mixup=True), 1.0),
    **{f"frozen {lr}": Tuning(replace(_CALM, lr=lr), 0.7) for lr in (0.003, 0.01, 0.03, 0.1)},
    "frozen 0.03, mixup": Tuning(replace(_CALM, lr=0.03, mixup=True), 0.7),
}
_TRIALS: dict[
    tuple[int, int], dict[str, tuple[str, ...]]
] = {  # by training images and epochs, then by start; the most telling first
    (20_000, 3): {
        "auto": (
            "frozen 0.03",
            "taught 0.03",
            "taught 0.1",
            "taught 0.01",
            "taught 0.03, mixup",
            "teacher alone 0.03, mixup",
            "taught 0.1, mixup",
        ),
        "none": ("plain 0.03", "plain 0.1"),
    },
    (20_000, 10): {"auto": ("taught 0.03, mixup", "taught 0.03", "teacher alone 0.03, mixup")},
    (20_000, 1): {"auto": ("frozen 0.03", "frozen 0.003", "frozen 0.03, mixup")},
    (5_000, 1): {
        "auto": (
            "frozen 0.03",
            "frozen 0.003",
            "frozen 0.01",
            "taught 0.03",
            "frozen 0.03, mixup",
        )
    },
}


def trials() -> Iterator[tuple[int, int, str, str]]:
    """Yield the number of training images, the epochs, the start and the variation of every trial."""
    for (images, epochs), starts in _TRIALS.items():
        for start, names in starts.items():
            yield from ((images, epochs, start, name) for name in names)


_OURS = replace(recipe("reconstructed"), epochs=1)
_PLAIN = replace(QUICK, lr=0.03)
CHOSEN: dict[str, dict[str, Tuning]] = {  # by start
    "auto": {
        "reconstructed": Tuning(_OURS, 0.7),
        "reconstructed, no mixup": Tuning(replace(_OURS, mixup_from_steps=None), 0.7),
        "reconstructed, no labels": Tuning(_OURS, 1.0),
        "plain": Tuning(_PLAIN),
    },
    **{start: {"plain": Tuning(_PLAIN), "plain, teacher": Tuning(_PLAIN, 0.7)} for start in RIVALS},
}
_FIRST = (
    ("auto", "reconstructed"),
    ("none", "plain"),
    ("grail", "plain"),
    ("auto", "reconstructed, no labels"),
)


def schedule() -> Iterator[tuple[str, str, str, int]]:
    """Yield network, start, tuning and epochs of every run, the most telling first."""
    others = [
        (start, name) for start, names in CHOSEN.items() for name in names if (start, name) not in _FIRST
    ]
    for pairs, length, network in product((_FIRST, others), (1, 3, 10), FLOPS):
        yield from ((network, start, name, length) for start, name in pairs)
