r"""Network slimming (Liu et al., 2017): sparse scales by training, one quantile over all layers.

While the network trains, $\lambda \sum |\gamma|$ is added to the loss; its subgradient is $\pm\lambda$ for each scale.
Then the channels with the smallest $|\gamma|$ of the whole network leave, however many of one layer these may be; no
layer is emptied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from slimilar.criteria.base import Facts, Floats, Weights, by_rank, mark_trained
from slimilar.criteria.filters import mean_scale
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.modules import named_tensors

if TYPE_CHECKING:
    from slimilar.train import Hooks


@dataclass(frozen=True)
class Slimming:
    """Remove the smallest |gamma| of all layers; a height is the channel's rank among all, from 0 to 1.

    `strength` is lambda: 1e-4 in its paper's VGG, 1e-5 in its ResNets and DenseNets.
    """

    strength: float = 1e-4
    trained: bool = False
    name: str = "slimming"
    facts: ClassVar[Facts] = Facts(
        "Training with L1 on the batch-norm scales, then the channels of smallest |gamma| over all layers are removed.",
        needs="training",
        tag="NS",
        automatic=True,
        pretrained=False,
    )

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        return by_rank([_score(group, weights) for group in groups], groups)

    def hooks(self, groups: Sequence[ChannelGroup], counts: Sequence[int] | None) -> Hooks:
        """Return the L1 term on the scales of the channels that can leave."""
        from slimilar.train import Hooks

        places: dict[str, set[int]] = {}
        for group in groups:
            for norm in group.batch_norms:
                if norm.weight is not None:
                    places.setdefault(norm.weight, set()).update(norm.positions.ravel().tolist())
        index = {name: torch.tensor(sorted(found)) for name, found in places.items()}

        def regulariser(model: nn.Module) -> Tensor:
            held = named_tensors(model)
            total = torch.stack([held[n][i.to(held[n].device)].abs().sum() for n, i in index.items()]).sum()
            return self.strength * total

        return Hooks(
            regulariser=regulariser if index else None,
            on_epoch_end=lambda model, epoch: mark_trained(model, self.name),
            name=f"{self.name}, strength {self.strength:g}",
        )


def _score(group: ChannelGroup, weights: Weights) -> Floats | str:
    if not any(norm.weight is not None for norm in group.batch_norms):
        return "no batch norm with a scale: there is nothing to rank by"
    return mean_scale(group, weights)
