"""Batch norms with the statistics of the whole batch, where several processes hold a part of it each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn


@contextmanager
def synchronized_batch_norm(model: nn.Module, world_size: int, enabled: bool = True) -> Iterator[None]:
    """Let every batch norm use the statistics of the whole batch; the model is restored at the end.

    torch's SyncBatchNorm does not run on a CPU and changes the class of modules; this works on every device.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    changed = norms if enabled and world_size > 1 else []
    for norm in changed:
        norm.forward = partial(_forward, norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in changed:
            del norm.__dict__["forward"]


def _forward(norm: Any, x: Tensor) -> Tensor:
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, x)
        return plain
    given, x = x.dtype, x.float()  # mixed precision must not reach the sums
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1] + [1] * (x.ndim - 2)
    count = _summed(torch.tensor(float(x.numel() // x.shape[1]), device=x.device))
    mean = _summed(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = _summed(centred.square().sum(axes)) / count
    _update_statistics(norm, mean.detach(), (variance * count / (count - 1)).detach())
    y: Tensor = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(given)


class _Sum(torch.autograd.Function):
    """The sum over processes. Every process's output depends on this one's input, so gradients add up too."""

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
def _update_statistics(norm: Any, mean: Tensor, variance: Tensor) -> None:
    if not norm.track_running_stats:
        return
    norm.num_batches_tracked.add_(1)
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, momentum)
    norm.running_var.lerp_(variance, momentum)
