"""A moving average of the weights, which often does better than the weights themselves."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    r"""$\bar w \leftarrow d\,\bar w + (1 - d)\,w$ after every step, for weights and for the statistics of batch norms.

    Early on, the decay is $\min(d, (1 + n) / (10 + n))$ at step n: the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.steps = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            # Statistics are averaged as well: those of the latest weights would not fit the averaged ones.
            _ = mine.lerp_(theirs, 1 - decay) if mine.is_floating_point() else mine.copy_(theirs)
        self.steps += 1

    def state(self) -> dict[str, Tensor]:
        return {**self.model.state_dict(), "steps": torch.tensor(self.steps)}

    def load(self, state: dict[str, Tensor]) -> None:
        state = dict(state)
        self.steps = int(state.pop("steps"))
        self.model.load_state_dict(state)
