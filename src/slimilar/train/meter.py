"""Running sums of an epoch over all processes: the loss, right answers, images, and time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from slimilar.errors import TrainingError
from slimilar.train.team import Team


class Meter:
    """Sums on the device; reading one makes the device wait, so that is done now and then, not at every step."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.sums = torch.zeros(3, dtype=team.wide, device=team.device)  # loss, right answers, images
        self.start_clock()

    def start_clock(self) -> None:
        self.start, self.images = time.perf_counter(), 0

    @torch.no_grad()
    def add(self, loss: Tensor, scores: Tensor, labels: Tensor, total: int) -> None:
        """Count this process's share of a batch of ``total`` images; ``loss`` is the mean over the share."""
        right = (scores.argmax(1) == labels).sum()
        self.sums += torch.stack([loss * len(labels), right.to(loss), torch.full_like(loss, len(labels))])
        self.images += total

    def totals(self, where: str) -> list[float]:
        """Return the sums over all processes, or stop the training that is at ``where``."""
        totals = self.team.sum(*self.sums)
        if not math.isfinite(totals[0]):
            raise TrainingError(
                f"the loss must be finite, but it became {totals[0]} in {where}; the last checkpoint is intact, "
                "so lower the learning rate or look at the data"
            )
        return totals

    def means(self, where: str) -> tuple[float, float]:
        """Return the mean loss and the share of right answers."""
        loss, right, images = self.totals(where)
        return loss / images, right / images

    def rate(self) -> float:
        """Return the images a second since the clock was started."""
        return self.images / max(time.perf_counter() - self.start, 1e-9)

    def load(self, totals: Tensor) -> None:
        """Put sums back; the first process carries those of all, so that they are counted once."""
        self.sums = totals.to(self.sums) * float(self.team.first)
