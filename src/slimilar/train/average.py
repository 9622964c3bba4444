"""An exponential moving average of the weights, which often scores better than the weights themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    r"""Return a model that averages: $\bar w \leftarrow d\,\bar w + (1 - d)\,w$ at every `update_parameters(model)`.

    Early on, the decay is $\min(d, n / (9 + n))$ for the n-th update, so that the random start is soon forgotten.
    The statistics of batch norms are averaged too: those of the latest weights would not fit the averaged ones.
    """

    @torch.no_grad()
    def update(averaged: Any, current: Any, count: Tensor | int) -> None:
        early = int(count) / (9 + int(count))
        if averaged[0].is_floating_point():
            torch._foreach_lerp_(averaged, current, 1 - min(decay, early))
        else:
            torch._foreach_copy_(averaged, current)

    average = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    average.module.eval().requires_grad_(False)
    average.n_averaged.fill_(1)  # the start counts; from 0 on, the first update would only copy
    return average


def average_tensors(average: AveragedModel) -> dict[str, Tensor]:
    """Return what a checkpoint holds of an average: its weights, and the number of updates."""
    return {**average.module.state_dict(), "steps": average.n_averaged - 1}


def load_average(average: AveragedModel, tensors: dict[str, Tensor]) -> None:
    """Restore what `average_tensors` returned."""
    weights = {name: tensor for name, tensor in tensors.items() if name != "steps"}
    average.module.load_state_dict(weights)
    average.n_averaged.copy_(tensors["steps"] + 1)
