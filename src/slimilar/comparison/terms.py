"""What is compared, and under which terms: the same for every criterion, and for every call that continues."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from slimilar.criteria import facts
from slimilar.criteria.needs import Given, missing
from slimilar.data.source import ImageSource
from slimilar.errors import InvalidInput, Option
from slimilar.graph.groups import Residual
from slimilar.planning.budgets import parse_budget
from slimilar.planning.cost import count, human
from slimilar.reconstruction.apply import SUBSTITUTES
from slimilar.reconstruction.methods import Reconstruction, reconstruction_method
from slimilar.train import RECIPES, Recipe
from slimilar.train.settings import Precision
from slimilar.utils.suggestions import choose

OWN = "own"
_FEWEST = 1000  # FLOPs that anybody would name; less is a share with a mistake in it
_SAMPLED = 64  # images whose content stands for a dataset's


@dataclass(frozen=True, eq=False)
class Subject:
    """The network that is pruned, an input that it takes, and labelled images to train and to test on."""

    model: nn.Module
    example: Any
    train: ImageSource
    test: ImageSource
    source: str | None = None  # the name of the network, as `slimilar.load` understands it


Opener = Callable[[], Subject]


@dataclass(frozen=True)
class Terms:
    """What every criterion is given alike.

    `substitutes` are those of `slimilar.pipeline`, or "own": what the criterion's paper does. `flops` are budgets as
    `slimilar.pipeline` takes them. `images` for calibration are drawn from the training images, by seed. Criteria
    with a training phase have it for `sparse_epochs` epochs; with `plain_epochs` the others train for as many
    without any penalty, from the same start. Networks whose consumers were fitted to images may be fine-tuned by a
    recipe of their own, `fitted_recipe`; training phases may have one, too, `sparse_recipe`. With `score_epochs` the
    test accuracy after every epoch is recorded; nothing is chosen by it. `precision` is that of `TrainingSettings`.
    """

    criteria: tuple[str, ...]
    flops: tuple[str, ...]
    substitutes: tuple[str, ...] = (OWN,)
    seeds: tuple[int, ...] = (0,)
    epochs: int = 1
    recipe: Recipe = RECIPES["quick"]
    sparse_epochs: int = 1
    plain_epochs: bool = False
    images: int = 512
    residual: Residual = "inner"
    keep: bool = False  # the networks, as files
    fitted_recipe: Recipe | None = None
    sparse_recipe: Recipe | None = None
    score_epochs: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("criteria", "flops", "substitutes", "seeds"):
            given: Sequence[object] = getattr(self, name)
            if not given or len(set(given)) != len(given):
                raise InvalidInput(f"{name} must list at least one name and no duplicates, got {list(given)}")
        for substitute in self.substitutes:
            choose(substitute, (OWN, *SUBSTITUTES), "reconstruction")
        for budget in self.flops:
            _check_budget(budget)
        for name in ("epochs", "sparse_epochs", "images"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} must not be negative, got {getattr(self, name)}")
        choose(self.residual, get_args(Residual), "residual")
        choose(self.precision, get_args(Precision), "precision")
        if min(self.seeds) < 0:
            raise InvalidInput(f"seeds must not be negative, got {min(self.seeds)}")
        self._check_needs()

    def _check_needs(self) -> None:
        given = Given(images=self.images > 0, labels=self.images > 0, trained=self.sparse_epochs > 0)
        for criterion in self.criteria:
            lacking = missing(facts(criterion), given)
            if lacking == "training":
                raise InvalidInput(
                    f"criterion {criterion!r} needs a training phase, got ", Option("sparse_epochs"),
                    " 0; give it at least 1",
                )  # fmt: skip
            if lacking is not None:
                raise InvalidInput(
                    f"criterion {criterion!r} needs images, got ", Option("images"), " 0; 512 are usual"
                )

    def fits(self, substitute: str) -> bool:
        """Tell whether consumers are fitted to images."""
        method = reconstruction_method(substitute, images=True)
        return self.images > 0 and method is Reconstruction.LEAST_SQUARES

    def recipe_for(self, substitute: str) -> Recipe:
        """Return how a network is fine-tuned, for as many epochs as all of them."""
        fitted = self.fitted_recipe if self.fits(substitute) else None
        return dataclasses.replace(fitted or self.recipe, epochs=self.epochs)

    def phase_recipe(self) -> Recipe:
        """Return how a network is trained before pruning."""
        return dataclasses.replace(self.sparse_recipe or self.recipe, epochs=self.sparse_epochs)

    def resolve(self, criterion: str) -> dict[str, bool]:
        """Return the reconstructions to try with a criterion, each once, and whether it is the criterion's own."""
        own = facts(criterion).reconstruction
        found = (
            own if s == OWN else str(reconstruction_method(s, self.images > 0)) for s in self.substitutes
        )
        return {s: s == own for s in dict.fromkeys(found)}


def _check_budget(budget: str) -> None:
    """Refuse what is neither a share nor a number of FLOPs that a network could have."""
    if 1 < parse_budget("flops", budget, 1) < _FEWEST:
        raise InvalidInput(
            f'flops must be a share from 0 to 1 ("0.5", "50%"), or a number of FLOPs such as "40M", got {budget!r}'
        )


def check(subject: Subject, terms: Terms) -> None:
    """Refuse what could not be carried out, before any work starts."""
    before = count(subject.model, subject.example).flops
    for budget in terms.flops:
        if parse_budget("flops", budget, before) > before:
            raise InvalidInput(
                f"flops must be at most the {human(before)} of the network, got {budget!r}; pass less"
            )
    if min(len(subject.train), len(subject.test)) < 2:
        counts = f"{len(subject.train)} and {len(subject.test)}"
        raise InvalidInput(f"there must be training and test images, got {counts}; check the data")
    if terms.images > len(subject.train):
        raise InvalidInput(
            f"images must be at most the {len(subject.train)} training images, got {terms.images}"
        )


def fixed(subject: Subject, terms: Terms) -> dict[str, Any]:
    """Return what may not change between calls, as JSON; criteria, budgets and seeds may be added."""
    found = {
        "model": digest(subject.model),
        "training images": sample_digest(subject.train),
        "test images": sample_digest(subject.test),
        "epochs": terms.epochs,
        "recipe": _course(terms.recipe),
        "sparse epochs": terms.sparse_epochs,
        "plain epochs": terms.plain_epochs,
        "calibration images": terms.images,
        "residual": terms.residual,
    }
    if terms.fitted_recipe is not None:
        found["recipe of fitted networks"] = _course(terms.fitted_recipe)
    if terms.sparse_recipe is not None:
        found["recipe of training phases"] = _course(terms.sparse_recipe)
    if terms.precision != "auto":
        found["precision"] = terms.precision
    loaded: dict[str, Any] = json.loads(json.dumps(found))
    return loaded


def _course(recipe: Recipe) -> dict[str, Any]:
    return {k: v for k, v in recipe.terms().items() if k != "epochs"}


def digest(model: nn.Module) -> str:
    """Return a fingerprint of a network's class and weights."""
    sha = hashlib.sha256(type(model).__qualname__.encode())
    for name, tensor in model.state_dict().items():
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(_bytes(tensor))
    return sha.hexdigest()[:16]


def sample_digest(data: ImageSource) -> str:
    """Return how many images there are, and a fingerprint of some of them as the network sees them."""
    images, labels = data.batch(torch.linspace(0, len(data) - 1, min(_SAMPLED, len(data))).long())
    sha = hashlib.sha256(_bytes(images) + _bytes(labels.long()))
    return f"{len(data)}, {sha.hexdigest()[:16]}"


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def calibration(subject: Subject, terms: Terms, seed: int) -> tuple[Tensor, Tensor]:
    """Return images without augmentation, and their labels, drawn from the training images by seed."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(subject.train), generator=generator)[: terms.images]
    images, labels = subject.train.batch(chosen)
    return images.contiguous(), labels
