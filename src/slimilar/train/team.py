"""The processes that train together: one, or as many as a launcher started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from slimilar.errors import TrainingError


@dataclass(frozen=True)
class Team:
    """This process among its like: as many as ``accelerate launch`` or ``torchrun`` started, or it alone."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls) -> Team:
        """Find out from the environment who we are; starts the communication where a launcher asks for it."""
        from accelerate import PartialState

        # Told nothing, accelerate takes the processes of a launcher for lone ones on a machine without GPU.
        state = PartialState(cpu=not getattr(torch, "accelerator", torch.cuda).is_available())
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if state.num_processes != started:
            raise TrainingError(
                f"the launcher's {started} processes must find each other, got {state.num_processes}; "
                "start them with 'accelerate launch' or 'torchrun', or unset WORLD_SIZE"
            )
        return cls(state.device, state.process_index, state.num_processes)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def wide(self) -> torch.dtype:
        """The type to sum up in; Apple's GPUs have no float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def sum(self, *values: Tensor) -> list[float]:
        """Return the sums over all processes."""
        stacked = torch.stack([value.to(self.device, self.wide) for value in values])
        if self.world > 1:
            distributed.all_reduce(stacked)
        return [float(value) for value in stacked]

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a module whose backward pass averages gradients over the processes."""
        if self.world == 1:
            return model
        ids = None if self.device.type == "cpu" else [self.device]
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)


Placed = TypeVar("Placed", Tensor, nn.Module)


def placed(thing: Placed, device: torch.device) -> Placed:
    """Move a network or a batch to a device; images and kernels channels-last, which trains faster."""
    if isinstance(thing, Tensor) and thing.ndim != 4:
        return thing.to(device, non_blocking=True)
    # A module passes over those of its tensors that have no channels-last form.
    return thing.to(device, memory_format=torch.channels_last, non_blocking=True)  # type: ignore[call-overload, no-any-return]


@contextmanager
def shared_batch_norm(model: nn.Module, team: Team, wanted: bool = True) -> Iterator[None]:
    """Let every batch norm see the whole batch, not one process's share of it; the model is left as it was.

    torch's own SyncBatchNorm knows no CPU and changes the class of modules; this works on every device.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    shared = norms if wanted and team.world > 1 else []
    for norm in shared:
        norm.forward = partial(_shared_forward, norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in shared:
            del norm.__dict__["forward"]


def _shared_forward(norm: Any, x: Tensor) -> Tensor:
    if not norm.training:
        alone: Tensor = type(norm).forward(norm, x)
        return alone
    given, x = x.dtype, x.float()  # mixed precision must not reach the sums
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1] + [1] * (x.ndim - 2)
    count = _summed(torch.tensor(float(x.numel() // x.shape[1]), device=x.device))
    mean = _summed(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = _summed(centred.square().sum(axes)) / count
    _remember(norm, mean.detach(), (variance * count / (count - 1)).detach())
    y: Tensor = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(given)


class _Sum(torch.autograd.Function):
    """The sum over processes; every process's output depends on this one's input, so gradients add up too."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total: Tensor = _Sum.forward(ctx, gradients[0])
        return total


def _summed(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def _remember(norm: Any, mean: Tensor, variance: Tensor) -> None:
    if not norm.track_running_stats:
        return
    norm.num_batches_tracked.add_(1)
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, momentum)
    norm.running_var.lerp_(variance, momentum)
