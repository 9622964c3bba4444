"""Running sums of an epoch over all processes: loss, correct answers, images, and time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from slimilar.errors import TrainingError
from slimilar.train.distributed import DistributedContext


class RunningSums:
    """Sums on the device. Reading one makes the device wait, so it is read now and then, not at every step."""

    def __init__(self, context: DistributedContext) -> None:
        self.context = context
        self.sums = torch.zeros(3, dtype=context.sum_dtype, device=context.device)  # loss, correct, images
        self.start_clock()

    def start_clock(self) -> None:
        """Start to count time and images for `images_per_second`."""
        self.start, self.images = time.perf_counter(), 0

    @torch.no_grad()
    def add(self, loss: Tensor, scores: Tensor, labels: Tensor, total: int) -> None:
        """Count this process's share of a batch of ``total`` images; ``loss`` is the mean over the share."""
        correct = (scores.argmax(1) == labels).sum()
        self.sums += torch.stack([loss * len(labels), correct.to(loss), torch.full_like(loss, len(labels))])
        self.images += total

    def totals(self, position: str) -> list[float]:
        """Return the sums over all processes; raise, naming the position, where the loss is not finite."""
        totals = self.context.sum(*self.sums)
        if not math.isfinite(totals[0]):
            raise TrainingError(
                f"the loss must be finite, but it became {totals[0]} in {position}; the last checkpoint is intact, "
                "so lower the learning rate or check the data"
            )
        return totals

    def means(self, position: str) -> tuple[float, float]:
        """Return the mean loss and the accuracy."""
        loss, correct, images = self.totals(position)
        return loss / images, correct / images

    def images_per_second(self) -> float:
        """Return the throughput since the clock was started."""
        return self.images / max(time.perf_counter() - self.start, 1e-9)

    def load(self, totals: Tensor) -> None:
        """Restore sums; the first process holds those of all, so that they are counted once."""
        self.sums = totals.to(self.sums) * float(self.context.is_first)
