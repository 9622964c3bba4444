"""Accuracy and loss of a classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimilar.data.source import Data, ImageSource, as_image_source
from slimilar.errors import DataError, InvalidInput
from slimilar.train.batches import EvaluationPass, batches
from slimilar.train.distributed import DistributedContext
from slimilar.train.settings import Precision, TrainingSettings
from slimilar.utils.batch_halving import halving
from slimilar.utils.modules import device_of


@dataclass(frozen=True)
class Score:
    """Shares of the images, in [0, 1], and the mean cross entropy."""

    accuracy: float
    top5: float
    loss: float
    images: int


def evaluate(model: nn.Module, data: Data, batch_size: int = 250, precision: Precision = "float32") -> Score:
    """Return the score of a classifier on a dataset, without augmentation. The model keeps its mode and its device.

    It runs on the model's device, in batches that are halved if memory runs out. `precision` selects mixed precision
    (see `TrainingSettings`); a model in half precision runs in its own. Under a launcher, every process evaluates a
    share, and all return the score of the whole dataset.
    """
    source = as_image_source(data)
    if len(source) == 0:
        raise DataError("there must be at least one image to evaluate on, got none; check the path")
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        context = DistributedContext.join(model)
        amp = TrainingSettings(precision=precision).autocast_dtype(device_of(model))
        return halving(batch_size, lambda size: _score(model, source, size, context, amp), device_of(model))
    finally:
        for module, training in modes.items():
            module.training = training


@torch.inference_mode()
def _score(
    model: nn.Module, data: ImageSource, batch_size: int, context: DistributedContext, amp: torch.dtype | None
) -> Score:
    device = device_of(model)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    sums = torch.zeros(3, dtype=context.sum_dtype, device=device)
    for images, labels, _ in batches(EvaluationPass(data, batch_size, context.rank, context.world_size)):
        if len(labels):
            with torch.autocast(device.type, amp, enabled=amp is not None):
                scores = model(images.to(device, dtype))
            sums += _sums(_checked(scores), labels.to(device))
    top1, top5, loss = (value / len(data) for value in context.sum(*sums))
    return Score(top1, top5, loss, len(data))


def _checked(scores: object) -> Tensor:
    """Return scores in single precision; refuse what is no classification."""
    if isinstance(scores, Tensor) and scores.ndim == 2:
        return scores.float()
    got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
    raise InvalidInput(
        f"a classifier must return scores (images, classes) to be evaluated, got {got}; wrap it so that it does"
    )


def _sums(scores: Tensor, labels: Tensor) -> Tensor:
    best = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(scores, labels, reduction="sum")
    return torch.stack([best[:, 0].sum().to(loss), best.sum().to(loss), loss])
