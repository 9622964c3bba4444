"""What the weights hold of every unit: its filters, its kernels in the consumers, its scales."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from slimilar.criteria.base import Floats, Ints, Weights
from slimilar.criteria.similarity import moments_of
from slimilar.graph.groups import ChannelGroup, Member


def filter_members(group: ChannelGroup) -> list[Member]:
    """Return the members that hold the filters writing a group: the output axis of a producer's weight.

    >>> import torch, slimilar
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    >>> plan = slimilar.analyze(net, torch.zeros(1, 3, 8, 8), criterion="magnitude-l2")
    >>> [(m.tensor, m.axis) for m in filter_members(plan.groups[0])]
    [('0.weight', 0)]
    """
    return list(group.filters)


def is_scale(member: Member, group: ChannelGroup) -> bool:
    """Tell whether a member is the scale of a batch norm: that is what 'writes' channels selected from a stream."""
    return any(member.tensor == norm.weight for norm in group.batch_norms)


def has_filters(group: ChannelGroup) -> bool:
    """Tell whether a group is written by filters."""
    return any(not is_scale(m, group) for m in filter_members(group))


def kernel_members(group: ChannelGroup) -> list[Member]:
    """Return the members that hold the kernels with which a group is read."""
    read = {(r.weight, r.weight_axis) for r in group.consumers}
    return [m for m in group.members if (m.tensor, m.axis) in read]


def rows(member: Member, width: int, tensor: Tensor) -> Tensor:
    """Return what each unit holds of a tensor, a row for each: zeros where a unit holds less than others."""
    flat = tensor.movedim(member.axis, 0).reshape(tensor.shape[member.axis], -1)
    places = padded_places(member.units, width)
    held = torch.cat([flat, flat.new_zeros(1, flat.shape[1])])[torch.from_numpy(places)]
    return held.reshape(width, -1)


def padded_places(units: Ints, width: int) -> Ints:
    """Return where each unit stands in a vector, as rows of one length: one past the end where there is none."""
    inside = np.flatnonzero((units >= 0) & (units < width))
    inside = inside[np.argsort(units[inside], kind="stable")]
    counts = np.bincount(units[inside], minlength=width)
    found = np.full((width, int(counts.max(initial=0))), len(units), np.int64)
    column = np.arange(len(inside)) - np.repeat(np.cumsum(counts) - counts, counts)
    found[units[inside], column] = inside
    return found


def filters(group: ChannelGroup, weights: Weights) -> Tensor:
    """Return the filters of every unit as rows, those of all producers side by side, in float64."""
    parts = [rows(m, group.width, held(m, weights)) for m in filter_members(group)]
    return torch.cat(parts, 1) if parts else torch.zeros(group.width, 0, dtype=torch.float64)


def held(member: Member, weights: Weights) -> Tensor:
    """Return a member's tensor in float64."""
    return weights.tensors[member.tensor].detach().cpu().double()


def totals(member: Member, width: int, tensor: Tensor) -> Tensor:
    """Return the sum of what each unit holds of a tensor; unlike `rows`, no unit takes the space of the largest."""
    found = tensor.movedim(member.axis, 0).reshape(tensor.shape[member.axis], -1).sum(1)
    inside = np.flatnonzero((member.units >= 0) & (member.units < width))
    units = torch.from_numpy(member.units[inside])
    return found.new_zeros(width).index_add_(0, units, found[torch.from_numpy(inside)])


def magnitudes(group: ChannelGroup, weights: Weights, power: int) -> Floats:
    r"""Return $\sum |w|$ (power 1) or $(\sum w^2)^{1/2}$ (power 2) over the filters of every unit."""
    total = torch.zeros(group.width, dtype=torch.float64)
    for member in filter_members(group):
        total += totals(member, group.width, held(member, weights).abs() ** power)
    found: Floats = (total ** (1 / power)).numpy()
    return found


def scales(group: ChannelGroup, weights: Weights) -> Iterator[Tensor]:
    """Yield |gamma| of every unit at each of its places in each batch norm, in float64."""
    for norm in group.batch_norms:
        gamma = moments_of(norm, weights)[1].abs().double()
        yield from gamma[torch.from_numpy(norm.positions)].T


def mean_scale(group: ChannelGroup, weights: Weights) -> Floats:
    """Return the mean |gamma| of every unit."""
    found: Floats = torch.stack(list(scales(group, weights))).mean(0).numpy()
    return found
