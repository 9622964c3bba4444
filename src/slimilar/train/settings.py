"""Hooks and settings of a run beside its recipe, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from slimilar.errors import InvalidInput
from slimilar.train.loss import Distillation
from slimilar.utils.devices import cpu_has_bfloat16

Precision = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Hooks:
    """How a method with a training phase of its own takes part. Each hook gets the plain model, not a wrapper.

    ``regulariser(model)`` returns a term that is added to the loss of every step. ``after_step(model, lr)``
    may change weights in place, as a proximal step does. ``on_epoch_end(model, epoch)`` comes after the last
    step of an epoch (counted from 1), before the network is evaluated and saved. With several processes each
    of them calls the hooks, so these must not depend on anything random. ``name``
    identifies the hooks in a checkpoint: a run is only resumed with hooks of the same name.
    """

    regulariser: Callable[[nn.Module], Tensor] | None = None
    after_step: Callable[[nn.Module, float], None] | None = None
    on_epoch_end: Callable[[nn.Module, int], None] | None = None
    name: str | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """How to run a recipe. Of these, only ``seed`` and the rounding of numbers change what is learnt.

    ``precision="auto"`` is mixed precision on a CUDA device, and float32 everywhere else: some CPUs announce
    bfloat16 and then stop at an illegal instruction. ``sync_batch_norm`` computes batch statistics over all
    processes. ``save_every`` writes a checkpoint every so many steps, in addition to the one after every epoch.
    ``tensorboard=None`` means: where it is installed.
    """

    seed: int = 0
    precision: Precision = "auto"
    sync_batch_norm: bool = True
    save_every: int | None = None
    log_every: int = 50
    tensorboard: bool | None = None
    distillation: Distillation = Distillation()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InvalidInput(f"seed must not be negative, got {self.seed}")
        if self.precision not in get_args(Precision):
            raise InvalidInput(f"precision must be one of {get_args(Precision)}, got {self.precision!r}")
        for name in ("save_every", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")

    def autocast_dtype(self, device: torch.device) -> torch.dtype | None:
        """Return the type for mixed precision on a device, None for float32 throughout."""
        if self.precision == "bfloat16" and device.type == "cpu" and not cpu_has_bfloat16():
            raise InvalidInput(
                "bfloat16 mixed precision needs a CPU that supports it, but here it fails with an illegal instruction; "
                "use float32"
            )
        if self.precision != "auto":
            return {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}[self.precision]
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


@dataclass(frozen=True)
class Progress:
    """Reported while training: every ``log_every`` steps, and, with ``test_accuracy``, after every epoch."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float
    test_accuracy: float | None = None


@dataclass(frozen=True)
class EpochRecord:
    """The numbers of one epoch; ``loss`` and ``accuracy`` are those on the augmented training images."""

    epoch: int
    loss: float
    accuracy: float
    lr: float
    test_accuracy: float | None = None
    test_loss: float | None = None


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The trained network (a new one, in evaluation mode) and how it came about.

    ``model`` has the weights of the last epoch, averaged where the recipe says so: the best ones would be
    chosen by looking at the test set. They are in ``best.safetensors`` for those who want them.
    """

    model: nn.Module
    history: tuple[EpochRecord, ...]
    start_accuracy: float | None = None

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy, None without test data."""
        return self.history[-1].test_accuracy if self.history else None
