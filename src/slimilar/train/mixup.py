"""Mixup (Zhang et al., 2018): every image is blended with another one of its batch, and so are the labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    """For each image of a batch: which one it was blended with, and its own share, at least one half."""

    partner: Tensor
    share: Tensor

    @staticmethod
    def drawn(images: int) -> Mixture:
        """Return a mixture drawn from torch's own generator, which a run seeds at every step."""
        share = torch.rand(images)
        return Mixture(torch.randperm(images), torch.maximum(share, 1 - share))

    def to(self, device: torch.device) -> Mixture:
        """Return the mixture on a device."""
        return Mixture(self.partner.to(device), self.share.to(device))

    def of(self, values: Tensor) -> Tensor:
        """Return the blend of each entry and its partner's.

        >>> Mixture(torch.tensor([1, 0]), torch.tensor([0.75, 0.5])).of(torch.tensor([[4.0], [8.0]])).tolist()
        [[5.0], [6.0]]
        """
        share = self.share.to(values).reshape(-1, *[1] * (values.ndim - 1))
        return share * values + (1 - share) * values[self.partner]
