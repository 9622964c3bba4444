r"""Duplicate filters (Roychowdhury et al., 2017): those that are the same but for a little are needed once.

A channel is described by all that makes its values: its filter with the batch norm folded into it, and the constant
that this leaves; what else acts on it on its own (a depthwise filter, another batch norm) is put beside. Between two
such descriptions,
$$d(a, b) = \left(\frac{\lVert a - b \rVert}{\lVert a \rVert + \lVert b \rVert}\right)^2$$
is 0 for duplicates and 1 for opposites, whatever the scale of the layer. Clusters are made by complete linkage, so that
all in one are near each other; the largest represents the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from slimilar.criteria.base import Facts, PerGroup, Weights, free_units, renumber
from slimilar.criteria.filters import filter_members, filters, has_filters, held, kernel_members, rows
from slimilar.criteria.similarity import moments_of
from slimilar.graph.groups import BatchNorm, ChannelGroup
from slimilar.similarity.linkage import linkage_tree, removal_order
from slimilar.similarity.removal_order import RemovalOrder

_NOISE = 1e-13  # squared relative distances below this are rounding


@dataclass(frozen=True)
class Duplicates(PerGroup):
    """Remove channels that another one nearly equals; a height is their squared relative distance."""

    name: str = "duplicates"
    facts: ClassVar[Facts] = Facts(
        "Filters that nearly equal another one are removed; their consumers use the other one instead.",
        tag="RDF",
        automatic=True,
        reconstruction="merge",
    )

    def order(self, turn: int, group: ChannelGroup, weights: Weights) -> RemovalOrder | str:
        """Return the order in which complete linkage merges the channels."""
        if not has_filters(group):
            return "not written by filters: there are no duplicates to look for"
        units = free_units(group)
        points = description(group, weights)[torch.from_numpy(units)]
        tree = linkage_tree(relative_distance(points), "complete")
        return renumber(removal_order(tree, torch.linalg.vector_norm(points, dim=1)), units)


def relative_distance(points: Tensor) -> Tensor:
    """Return the squared distance of every two rows, relative to their lengths: from 0 (equal) to 1 (opposite).

    >>> relative_distance(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-3.0, 0.0]])).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    gap = torch.cdist(points, points)
    length = torch.linalg.vector_norm(points, dim=1)
    both = (length[:, None] + length).clamp_min(torch.finfo(points.dtype).tiny)
    found: Tensor = (gap / both).square().clamp(0, 1)
    return found.masked_fill(found < _NOISE, 0.0).fill_diagonal_(0)


def description(group: ChannelGroup, weights: Weights) -> Tensor:
    """Return all that makes the values of each unit, a row for each."""
    producers, norms = filter_members(group), list(group.batch_norms)
    parts = [filters(group, weights)]
    taken = {(m.tensor, m.axis) for m in (*producers, *kernel_members(group))}
    if len(producers) == 1 and norms and norms[0].positions.shape[1] == 1:
        scale, shift = _affine(norms[0], weights)
        bias = next((m for m in group.members if m.tensor == f"{group.producers[0]}.bias"), None)
        if bias is not None:
            shift = shift + scale * rows(bias, group.width, held(bias, weights))
            taken.add((bias.tensor, bias.axis))
        parts = [parts[0] * scale, shift]
        norms = norms[1:]
        taken |= {(name, 0) for name in _tensors(group.batch_norms[0])}
    for norm in norms:
        taken |= {(name, 0) for name in _tensors(norm)}
        parts += _affine(norm, weights)
    parts += [
        rows(m, group.width, held(m, weights)) for m in group.members if (m.tensor, m.axis) not in taken
    ]
    return torch.cat([p for p in parts if p.is_floating_point()], 1)


def _tensors(norm: BatchNorm) -> list[str]:
    return [n for n in (norm.weight, norm.bias, norm.running_mean, norm.running_var) if n is not None]


def _affine(norm: BatchNorm, weights: Weights) -> tuple[Tensor, Tensor]:
    """Return by how much a batch norm multiplies each unit, and what it adds, as columns."""
    beta, gamma = (t.double() for t in moments_of(norm, weights))
    if norm.running_mean is None or norm.running_var is None:
        scale, shift = gamma, beta
    else:
        mean, variance = (
            weights.tensors[n].detach().cpu().double() for n in (norm.running_mean, norm.running_var)
        )
        scale = gamma / (variance + norm.eps).sqrt()
        shift = beta - scale * mean
    places = torch.from_numpy(norm.positions)
    return scale[places], shift[places]
