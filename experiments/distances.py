"""Distances of channels by batch norm (Eq. 4) and by activations (Eq. 1), and pruning by any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slimilar.criteria import Weights
from slimilar.criteria.base import free_units, renumber
from slimilar.criteria.similarity import spread
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.distances import activation_distance, channel_distance, normalise
from slimilar.similarity.linkage import linkage_tree, removal_order
from slimilar.similarity.removal_order import RemovalOrder

Distances = Mapping[str, Tensor]  # by the name of the batch norm


def norms(model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the batch norms of feature maps, by name, in order."""
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}


def by_norm(model: nn.Module) -> dict[str, Tensor]:
    """Return the distances that batch norms tell (Eq. 4)."""
    return {name: channel_distance(norm.bias, norm.weight) for name, norm in norms(model).items()}


def outputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return what every batch norm puts out."""
    found: dict[str, Tensor] = {}
    hooks = [
        # A copy, because an activation that works in place comes right behind.
        norm.register_forward_hook(lambda _m, _i, out, name=name: found.update({name: out.clone()}))
        for name, norm in norms(model).items()
    ]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def by_activations(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the distances on a batch of images (Eq. 1)."""
    return {name: activation_distance(out) for name, out in outputs(model, images).items()}


@dataclass(frozen=True, eq=False)
class Given:
    """The paper's clustering on distances that are given, normalised layer by layer or all by one number."""

    distances: Distances
    per_layer: bool = True
    name: str = "given"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        largest = max(float(d.max()) for d in self.distances.values())
        return [self._order(group, weights, largest) for group in groups]

    def _order(self, group: ChannelGroup, weights: Weights, largest: float) -> RemovalOrder | str:
        names = [str(norm.weight).removesuffix(".weight") for norm in group.batch_norms]
        if len(names) != 1 or names[0] not in self.distances:
            return "not one batch norm of feature maps"
        units = free_units(group)
        distance = self.distances[names[0]]
        place = torch.from_numpy(group.batch_norms[0].positions[units, 0])
        distance = distance[place][:, place]
        # Divided by the largest of all layers, distances keep their proportions and a threshold lies in [0, 1].
        tree = linkage_tree(normalise(distance) if self.per_layer else distance / largest)
        return renumber(removal_order(tree, spread(group, weights)[units]), units)
