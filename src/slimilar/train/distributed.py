"""Training in several processes: as many as a launcher started, or this one alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from slimilar.errors import TrainingError
from slimilar.utils.modules import device_of
from slimilar.utils.precision import has_float64

_LAUNCHED = {"WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"}  # set by torchrun or accelerate launch


@dataclass(frozen=True)
class DistributedContext:
    """This process among those that ``accelerate launch`` or ``torchrun`` started."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @classmethod
    def join(cls, model: nn.Module | None = None) -> DistributedContext:
        """Return this process on its own where the model is; under a launcher, its rank and device among the others."""
        if not _LAUNCHED & set(os.environ):
            return cls(torch.device("cpu") if model is None else device_of(model))
        from accelerate import PartialState

        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started > 1 and "MASTER_ADDR" not in os.environ:  # where they would meet is not known
            raise _apart(started, 1)
        # Without this, accelerate takes the processes of a launcher for single ones on a machine without GPU.
        state = PartialState(cpu=not torch.accelerator.is_available())
        if state.num_processes != started:
            raise _apart(started, state.num_processes)
        return cls(state.device, state.process_index, state.num_processes)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type of sums: float64, which Apple's GPUs do not have."""
        return torch.float64 if has_float64(self.device) else torch.float32

    def sum(self, *values: Tensor) -> list[float]:
        """Return the sums over all processes."""
        stacked = torch.stack([value.to(self.device, self.sum_dtype) for value in values])
        if self.world_size > 1:
            distributed.all_reduce(stacked)
        return [float(value) for value in stacked]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            distributed.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a module whose backward pass averages gradients over the processes."""
        if self.world_size == 1:
            return model
        ids = None if self.device.type == "cpu" else [self.device]
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def _apart(started: int, found: int) -> TrainingError:
    return TrainingError(
        f"the launcher's {started} processes must be connected, got a group of {found}; "
        "start them with 'accelerate launch' or 'torchrun', or unset WORLD_SIZE"
    )


Placed = TypeVar("Placed", Tensor, nn.Module)


def placed(thing: Placed, device: torch.device) -> Placed:
    """Move a network or a batch to a device; images and kernels channels-last, which trains faster."""
    if isinstance(thing, Tensor) and thing.ndim != 4:
        return thing.to(device, non_blocking=True)
    # A module leaves its tensors as they are where they have no channels-last form.
    return thing.to(device, memory_format=torch.channels_last, non_blocking=True)  # type: ignore[call-overload, no-any-return]
