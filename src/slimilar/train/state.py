"""The state of a training run: all that its next step depends on, as it goes into a checkpoint and comes back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.errors import TrainingError
from slimilar.train.average import average_tensors, load_average, moving_average
from slimilar.train.checkpoint import (
    load_checkpoint,
    load_optimiser,
    optimiser_tensors,
    prefixed,
    save_checkpoint,
    under,
)
from slimilar.train.configuration import RunConfiguration, check_fixed_terms, fixed_terms
from slimilar.train.distributed import DistributedContext, placed
from slimilar.train.running_sums import RunningSums
from slimilar.train.settings import EpochRecord


class TrainingState:
    """The network, its optimiser and average, the position in the training, and its history."""

    def __init__(
        self, model: nn.Module, configuration: RunConfiguration, context: DistributedContext
    ) -> None:
        self.configuration, recipe = configuration, configuration.recipe
        self.model = placed(model, context.device)
        self.optimiser = torch.optim.SGD(
            self.model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay,
            nesterov=True,
        )  # fmt: skip
        self.average = moving_average(self.model, recipe.ema) if recipe.ema else None
        self.dtype = configuration.settings.autocast_dtype(context.device)
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=self.dtype is torch.float16)
        self.epoch, self.step = 0, 0
        self.sums = RunningSums(context)
        self.history: list[EpochRecord] = []

    @property
    def position(self) -> str:
        """Epoch and step, for messages."""
        return f"epoch {self.epoch + 1}, by step {self.step}"

    @property
    def best_accuracy(self) -> float:
        """The best test accuracy so far, -1 if there is none."""
        return max((r.test_accuracy for r in self.history if r.test_accuracy is not None), default=-1.0)

    def result(self) -> nn.Module:
        """Return the network to use: the average where there is one."""
        return self.model if self.average is None else self.average.module

    def end_epoch(self, record: EpochRecord) -> None:
        """Move on to the next epoch."""
        self.history.append(record)
        self.epoch, self.step = self.epoch + 1, 0
        self.sums.sums.zero_()

    def save(self, path: Path, totals: list[float]) -> None:
        """Write a checkpoint; `totals` are the sums of all processes."""
        tensors = prefixed("model", self.model.state_dict())
        tensors |= prefixed("momentum", optimiser_tensors(self.optimiser))
        if self.average is not None:
            tensors |= prefixed("average", average_tensors(self.average))
        tensors["sums"] = torch.tensor(totals, dtype=torch.float64)
        save_checkpoint(path, tensors, self._info())

    def _info(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "history": [dataclasses.asdict(record) for record in self.history],
            "scaler": self.scaler.state_dict(),
            "terms": fixed_terms(self.configuration),
        }

    def load(self, path: Path) -> None:
        """Restore the state that a checkpoint holds."""
        tensors, info = load_checkpoint(path)
        check_fixed_terms(path, info["terms"], fixed_terms(self.configuration))
        self._load_model(path, under("model", tensors))
        load_optimiser(self.optimiser, under("momentum", tensors))
        if self.average is not None:
            load_average(self.average, under("average", tensors))
        self.scaler.load_state_dict(info["scaler"])
        self.epoch, self.step = info["epoch"], info["step"]
        self.history = [EpochRecord(**record) for record in info["history"]]
        self.sums.load(tensors["sums"])

    def _load_model(self, path: Path, weights: dict[str, Tensor]) -> None:
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise TrainingError(
                f"{path} must be of the same network, but its weights do not fit; "
                "pass the network that the run was started with, or start again in another folder"
            ) from error
