"""Soft filter pruning (He et al., 2018): small filters are zeroed again and again, and may come back.

After every epoch of training the filters with the smallest norm, the same share of every layer, are set to zero. They
stay in the network and get gradients like all others, so that next time other filters may be the smallest. At the
end those that are zero leave. What a batch norm remembers of a filter's mean is set to what it is from then on, or the
network as it is evaluated would not be the one that trains on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from slimilar.criteria.base import Facts, Ints, PerGroup, Weights, by_share, free_units, mark_trained
from slimilar.criteria.filters import filter_members, has_filters, magnitudes
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.utils.modules import named_tensors

if TYPE_CHECKING:
    from slimilar.train import Hooks


@dataclass(frozen=True)
class Soft(PerGroup):
    """Remove the filters of smallest norm, first those that training left at zero; a height is a share of the layer."""

    trained: bool = False
    name: str = "soft"
    facts: ClassVar[Facts] = Facts(
        "The smallest filters are zeroed after every epoch but may recover; those that end at zero are removed.",
        needs="training",
        tag="SFP",
        per_budget=True,
    )

    def order(self, turn: int, group: ChannelGroup, weights: Weights) -> RemovalOrder:
        """Return the order of growing norms."""
        return by_share(smallest(group, weights), turn)

    def hooks(self, groups: Sequence[ChannelGroup], counts: Sequence[int] | None) -> Hooks:
        """Return what zeroes the smallest filters of each group after every epoch."""
        from slimilar.train import Hooks

        if counts is None:
            raise InvalidInput(
                'the training phase of "soft" must know how much will leave: pass flops=, macs=, params= or ratio=, '
                "got none of them"
            )
        jobs = list(zip(groups, counts, strict=True))

        def on_epoch_end(model: nn.Module, epoch: int) -> None:
            held = named_tensors(model)
            chosen = [smallest(group, Weights(held))[:count] for group, count in jobs]
            for (group, _), units in zip(jobs, chosen, strict=True):
                _zero(group, units, held)
            mark_trained(model, self.name)

        return Hooks(on_epoch_end=on_epoch_end, name=f"{self.name}, {sum(counts)} filters")


def smallest(group: ChannelGroup, weights: Weights) -> Ints:
    """Return the units that may leave, that with the smallest filter first."""
    units = free_units(group)
    found: Ints = units[np.argsort(magnitudes(group, weights, power=2)[units], kind="stable")]
    return found


@torch.no_grad()
def _zero(group: ChannelGroup, units: Ints, held: dict[str, torch.Tensor]) -> None:
    """Set the filters of some units to zero, in place, and the running means behind them to what zero filters write."""
    for member in filter_members(group):
        places = torch.from_numpy(np.flatnonzero(np.isin(member.units, units)))
        tensor = held[member.tensor]
        tensor.index_fill_(member.axis, places.to(tensor.device), 0)
    if not has_filters(group):
        return
    bias = held.get(f"{group.producers[0]}.bias")
    # Behind a single producer, only the first batch norm sees its output as it is.
    for norm in group.batch_norms[: 1 if len(group.producers) == 1 else None]:
        if norm.running_mean is not None:
            means = held[norm.running_mean]
            at = torch.from_numpy(norm.positions[units].ravel()).to(means.device)
            means[at] = bias[at].to(means.dtype) if bias is not None and len(bias) == len(means) else 0.0
