"""What every experiment works with: trained networks, their images, scores and fine-tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.bases import BASES, load_base
from experiments.progress import show_progress
from experiments.scales import Scale
from slimilar.data import Images, cifar, demo_images
from slimilar.data.cifar import NORMALISATIONS
from slimilar.data.folder import ImageFiles, image_folder
from slimilar.graph.groups import Residual
from slimilar.models import CHECKPOINTS, demo_network, pretrained
from slimilar.train import Score, TrainingSettings, evaluate, finetune
from slimilar.train.settings import Precision
from slimilar.utils.row_ledger import RowLedger

SAVE_EVERY = 100  # steps of training that a kill may cost
LABELS = {
    "vgg16-cifar10": "VGG-16, CIFAR-10",
    "vgg16-cifar10-full": "VGG-16, CIFAR-10",
    "vgg16-cifar100-full": "VGG-16, CIFAR-100",
    "vgg16-cifar100": "VGG-16 of quarter width, CIFAR-100",
    "preresnet110-cifar10": "ResNet-110, CIFAR-10",
    "preresnet110-cifar100": "ResNet-110, CIFAR-100",
    "preresnet29-cifar10": "pre-activation ResNet-29, CIFAR-10",
    "preresnet20-cifar10": "pre-activation ResNet-20, CIFAR-10",
    "resnet20-cifar10": "ResNet-20, CIFAR-10",
    "resnet56-cifar10": "ResNet-56, CIFAR-10",
    "resnet56-cifar100": "ResNet-56, CIFAR-100",
    "resnet50-imagenet": "ResNet-50, ImageNet",
    "demo": "VGG-16 of 3/8 width, CIFAR-10",
}


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained network with its images: all of them normalised as it expects."""

    name: str
    model: nn.Module
    train: Images | ImageFiles | None  # None: there are no labelled training images at this scale
    test: Images | ImageFiles
    images: Tensor  # unlabelled ones, for calibration
    kind: str  # which recipe is its own

    @property
    def example(self) -> Tensor:
        """One image, to trace the network with."""
        return self.images[:1]

    @property
    def residual(self) -> Residual:
        """Which channels of a residual network may leave; in pre-activation blocks each chooses from the stream."""
        return "select" if self.name.startswith("preresnet") else "inner"

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the weights, so that a result says which ones it was made with."""
        found = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class ExperimentRun:
    """One run of an experiment."""

    scale: Scale
    settings: Any  # the experiment's own
    ledger: RowLedger
    data: Path | None
    seed: int = 0
    work: Path = Path("runs/experiments")  # for work that experiments share and resume
    opened: dict[str, TrainedNetwork] = field(default_factory=dict)
    precision: Precision = "auto"  # of the trainings; rows name another one than "auto"
    methods: tuple[str, ...] = ()  # compared by this process; none stands for all

    def network(self, name: str) -> TrainedNetwork:
        """Return a network by its name; it is read once."""
        if name not in self.opened:
            self.opened[name] = _open(name, self.scale, self.data, self.seed)
        return self.opened[name]

    def network_with(self, name: str, count: int | None) -> TrainedNetwork:
        """Return a network with the first `count` of its test images; None stands for all."""
        network = self.network(name)
        return network if count is None else replace(network, test=network.test.first(count))

    def base(self, name: str) -> Mapping[str, Any]:
        """Return the row of an unpruned network: accuracy, and which weights it was."""
        return self.ledger.row({"network": name, "method": "base"}, lambda: self._base(name))

    def _base(self, name: str) -> dict[str, Any]:
        network = self.network(name)
        return {"weights": network.digest, **self.score(network, network.model)}

    def score(self, network: TrainedNetwork, model: nn.Module) -> dict[str, Any]:
        """Return accuracies in % on the test images."""
        found: Score = evaluate(model, network.test, self.scale.batch)
        return {
            "accuracy": round(100 * found.accuracy, 2),
            "top5": round(100 * found.top5, 2),
            "images": found.images,
        }

    def finetuned(
        self, network: TrainedNetwork, model: nn.Module, name: str, fitted: bool = False
    ) -> nn.Module:
        """Return a pruned network after the scale's fine-tuning, the same for every method; a killed one goes on.

        `name` identifies the training among all of this scale. `fitted`: its consumers were fitted to images, so
        that it has the scale's recipe for such networks.
        """
        if network.train is None:
            return model
        recipe, folder = (
            self.scale.recipe(network.kind, fitted),
            self.work / "finetuned" / f"{name}-{self.seed}",
        )
        settings = TrainingSettings(
            seed=self.seed, precision=self.precision, save_every=SAVE_EVERY, tensorboard=False
        )
        done = finetune(
            model,
            network.train,
            recipe,
            folder=folder,
            resume=True,
            settings=settings,
            progress=show_progress,
        )
        return done.model


def _open(name: str, scale: Scale, data: Path | None, seed: int) -> TrainedNetwork:
    if name == "demo":
        model, dataset, normalisation = demo_network(), "demo", NORMALISATIONS["cifar10"]
    elif name in CHECKPOINTS:
        loaded = pretrained(name, data)
        model, dataset, normalisation = loaded.model, loaded.dataset, loaded.normalisation
    else:
        dataset = BASES[name].dataset if name in BASES else ""
        model, normalisation = load_base(name), NORMALISATIONS[dataset]
    if dataset == "imagenet":
        return _imagenet(name, model, scale, Path(data or "."), seed, normalisation)
    split = demo_images if dataset == "demo" else lambda part: cifar(dataset, part, data)
    train, test = (split(part).normalised(normalisation) for part in ("train", "test"))
    train = _some(train, scale.train, seed)
    images = train.first(scale.calibration).tensor()
    return TrainedNetwork(name, model, train, _some(test, scale.test, seed), images, _kind(name))


def _imagenet(
    name: str, model: nn.Module, scale: Scale, data: Path, seed: int, normalisation: Any
) -> TrainedNetwork:
    """Return a network with ImageNet: whole (folders train and val), or a sample with folders of classes alone.

    A sample has no training images; the first of each class is for calibration, the others are for testing.
    """
    root = data / "imagenet"
    train: ImageFiles | None = None
    if (root / "train").is_dir():
        train = image_folder(root / "train", normalisation=normalisation)
        unseen = image_folder(root / "val", classes=train.class_names, normalisation=normalisation)
        seen = train = _some(train, scale.train, seed)
    else:
        files = image_folder(root, normalisation=normalisation, workers=0)
        first = torch.cat([torch.ones(1, dtype=torch.bool), files.labels[1:] != files.labels[:-1]])
        seen, unseen = (_chosen(files, places.nonzero()[:, 0]) for places in (first, ~first))
    images = _some(seen, scale.calibration, seed)
    shown = images.batch(torch.arange(len(images)))[0].contiguous()
    return TrainedNetwork(name, model, train, _some(unseen, scale.test, seed), shown, "imagenet")


def _chosen(files: ImageFiles, places: Tensor) -> ImageFiles:
    return replace(files, files=tuple(files.files[i] for i in places.tolist()), labels=files.labels[places])


def _some(images: Any, count: int | None, seed: int) -> Any:
    """Return so many images, drawn by a seed."""
    if count is None or count >= len(images):
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    if isinstance(images, ImageFiles):
        return _chosen(images, order)
    return replace(images, images=images.images[order], labels=images.labels[order])


def _kind(name: str) -> str:
    return "resnet" if "resnet" in name else "vgg"
