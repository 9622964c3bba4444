"""How good a network is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimilar.data.source import Data, Source, as_source
from slimilar.errors import DataError
from slimilar.train.batches import Sweep, batches
from slimilar.train.team import Team


@dataclass(frozen=True)
class Score:
    """Shares of the images, in [0, 1], and the mean cross entropy."""

    accuracy: float
    top5: float
    loss: float
    images: int


def evaluate(model: nn.Module, data: Data, batch_size: int = 250) -> Score:
    """Score a classifier on a dataset, without augmentation; the model is left as it was, where it was.

    Under a launcher every process takes its share, and all of them get the score of the whole.
    """
    source = as_source(data)
    if len(source) == 0:
        raise DataError("there must be at least one image to evaluate on, got none; check the path")
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return _score(model, source, batch_size, Team.join())
    finally:
        for module, training in modes.items():
            module.training = training


@torch.inference_mode()
def _score(model: nn.Module, data: Source, batch_size: int, team: Team) -> Score:
    device = next((p.device for p in model.parameters()), team.device)
    sums = torch.zeros(3, dtype=team.wide, device=device)
    for images, labels, _ in batches(Sweep(data, batch_size, team.rank, team.world)):
        if len(labels):
            sums += _sums(model(images.to(device)), labels.to(device))
    right, near, loss = (value / len(data) for value in team.sum(*sums))
    return Score(right, near, loss, len(data))


def _sums(scores: Tensor, labels: Tensor) -> Tensor:
    best = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(scores, labels, reduction="sum")
    return torch.stack([best[:, 0].sum().to(loss), best.sum().to(loss), loss])
