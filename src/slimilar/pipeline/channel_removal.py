"""remove_channels(): the rewrite alone, for channels that the caller has chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from slimilar.errors import InvalidInput
from slimilar.graph.records import Trace, Write
from slimilar.graph.structure import Structure
from slimilar.pipeline.checks import check_inputs
from slimilar.surgery.branches import with_branches, without_branches
from slimilar.surgery.fault import verify_rewrite
from slimilar.surgery.history import remember
from slimilar.surgery.probe import find_structure
from slimilar.surgery.rewrite import Kept, operate, surgery
from slimilar.utils.pytree import Example
from slimilar.utils.suggestions import choose


def remove_channels(
    model: nn.Module,
    example: Example,
    channels: Mapping[str, Sequence[int]],
    *,
    verify: bool = True,
) -> nn.Module:
    """Return a NEW module without the given output channels of the named layers, and without all channels tied to them.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> remove_channels(net, torch.zeros(1, 3, 8, 8), {"0": [1, 6]})[0].out_channels
    6
    """
    model = check_inputs(model, example)
    structure = with_branches(model, find_structure(model, example, "joint"))
    mask = np.ones(structure.grouping.unit_count, np.bool_)
    for name, wanted in channels.items():
        _mark(model, structure, name, wanted, mask)
    mask = without_branches(structure, mask)
    in_front = {g for branch in structure.branches.values() for g in branch}
    for g, (start, group) in enumerate(
        zip(structure.grouping.offsets, structure.grouping.groups, strict=True)
    ):
        if g not in {*structure.branches, *in_front} and not mask[start : start + group.width].any():
            raise InvalidInput(
                f"at least one channel of {group.name} must stay, got a request to remove all {group.width}"
            )
    done = surgery(structure.trace, structure.grouping, mask)
    small = operate(model, done)
    remember(model, small, done)
    if verify:
        verify_rewrite(model, small, example, structure, mask)
    return small


def _mark(model: nn.Module, structure: Structure, name: str, wanted: Sequence[int], mask: Kept) -> None:
    """Mark the units behind some output channels of a layer as removed."""
    producers = _producers(structure.trace)
    layer = choose(name, [n for n in {**dict(model.named_modules()), **producers} if n], "layer")
    if layer not in producers:
        raise InvalidInput(
            f"channels can be removed from a layer that writes them (convolution, linear), got {layer!r}, "
            f"a {type(model.get_submodule(layer)).__name__}"
        )
    units = structure.grouping.unit_of[producers[layer].atoms]
    for channel in wanted:
        if not 0 <= channel < len(units):
            raise InvalidInput(f"channels of {layer} must be from 0 to {len(units) - 1}, got {channel}")
        unit = int(units[channel])
        reason = _why_fixed(structure, layer, producers[layer], unit)
        if reason:
            raise InvalidInput(f"channel {channel} of {layer} has to stay: {reason}")
        mask[unit] = False


def _producers(trace: Trace) -> dict[str, Write]:
    """Return what writes channels by the name of the module that runs, of the weight, and of the module that holds it.

    A module that writes several times is known by the first; the others have their weights' names.
    """
    first = np.array([axis.first for axis in trace.axes])
    found: dict[str, Write] = {}
    for write in reversed(trace.writes):
        atom = int(write.atoms.max())
        weight = trace.axes[int(np.searchsorted(first, atom, side="right")) - 1].tensor
        for name in (weight, weight.rpartition(".")[0], trace.ops[write.op].module):
            found[name] = write
    return found


def _why_fixed(structure: Structure, layer: str, write: Write, unit: int) -> str | None:
    grouping = structure.grouping
    if unit < 0:
        reasons = [f.reason for f in grouping.frozen if f.name == layer]
        return reasons[0] if reasons else _reason_of(structure.trace, write)
    g = int(np.searchsorted(grouping.offsets, unit, side="right")) - 1
    return grouping.groups[g].fixed.get(unit - grouping.offsets[g])


def _reason_of(found: Trace, write: Write) -> str:
    """Return why channels of a layer that is not named in `frozen` itself have to stay."""
    label = found.together
    mine = set(label[write.atoms[write.atoms >= 0]].tolist())
    for freeze in found.freezes:
        if mine & set(label[freeze.atoms].tolist()):
            return freeze.reason
    return "it is the only channel"
