"""Build the smaller model: index every (parameter, axis), and make the modules' own sizes agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.graph.groups import Grouping
from slimilar.graph.records import Trace, WeightNorm
from slimilar.surgery.branches import norm_behind
from slimilar.surgery.channel_selection import select_from
from slimilar.surgery.module_sizes import describe, recompute_weights, set_number
from slimilar.surgery.narrow_attention import narrow
from slimilar.surgery.removed_branches import Stand, replace_branches
from slimilar.utils.modules import copy_with, named_modules, named_tensors, on_meta
from slimilar.utils.spectral_norms import keep_sigma

Kept = NDArray[np.bool_]  # for every unit of a grouping, numbered over all groups: does it stay?
AxisIndex = Mapping[tuple[str, int], NDArray[np.int64]]  # (tensor, axis) -> the indices that stay


def atoms_kept(grouping: Grouping, kept: Kept) -> Kept:
    """Return for every atom whether it stays."""
    stays = np.append(kept, True)  # FIXED = -1 finds the last entry
    found: Kept = stays[grouping.unit_of]
    return found


def kept_indices(trace: Trace, grouping: Grouping, kept: Kept) -> AxisIndex:
    """Return the indices that stay, for every parameter or buffer axis that loses any."""
    stays = atoms_kept(grouping, kept)
    firsts = [axis.first for axis in trace.axes]  # each axis ends where the next begins
    whole = np.logical_and.reduceat(stays, firsts) if firsts else ()
    return {
        (axis.tensor, axis.axis): np.flatnonzero(stays[axis.first : axis.first + axis.size])
        for axis, all_stay in zip(trace.axes, whole, strict=True)
        if not all_stay
    }


def take(tensor: Tensor, indices: Mapping[int, NDArray[np.int64]]) -> Tensor:
    """Index a tensor along several axes; dtype, device and memory format are kept."""
    last = tensor.ndim in (4, 5) and not tensor.is_contiguous()
    result = tensor.detach()
    for axis, index in indices.items():
        result = result.index_select(axis, torch.from_numpy(index).to(tensor.device))
    if last and tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        result = result.contiguous(memory_format=torch.channels_last)
    return result.clone() if not indices else result


@dataclass(frozen=True, eq=False)
class Surgery:
    """All that has to be done to a model of the user's class to make the smaller one. Plain data.

    `operate(model, surgery)` does it, on the model it was found for or on a fresh one of the same class.
    """

    indices: AxisIndex
    numbers: Mapping[tuple[str, str, int | None], int]  # (module, attribute, item of a list) -> value
    selections: Mapping[str, NDArray[np.int64]]  # batch norm -> the channels of its stream that it reads
    biases: frozenset[str] = frozenset()  # convolutions and linear layers that gained a bias
    weight_norms: tuple[WeightNorm, ...] = ()  # whose magnitude takes in what the norm of the direction loses
    stands: Mapping[str, Stand] = field(
        default_factory=dict
    )  # layer of a removed branch -> what stands in its place
    folded: Mapping[str, str] = field(
        default_factory=dict
    )  # constant layer -> the batch norm that it takes in

    def then(self, later: Surgery) -> Surgery:
        """Return this surgery followed by another one on its result."""
        indices = dict(self.indices)
        for (name, axis), index in later.indices.items():
            before = indices.get((name, axis))
            indices[name, axis] = index if before is None else before[index]
        selections = {**self.selections, **later.selections}
        for module, chosen in self.selections.items():  # its index is no tensor of the original
            again = later.indices.get((f"{module}.index", 0))
            selections[module] = chosen if again is None else chosen[again]
            indices.pop((f"{module}.index", 0), None)
        for module in self.biases:  # nor is a bias that it gained: it is as long as the weight has filters
            again = indices.pop((f"{module}.bias", 0), None)
            if again is not None and module in self.stands:  # its weight has gone
                indices[f"{module}.weight", 0] = again
        norms = tuple(dict.fromkeys((*self.weight_norms, *later.weight_norms)))
        return Surgery(
            indices, {**self.numbers, **later.numbers}, selections, self.biases | later.biases, norms,
            {**self.stands, **later.stands}, {**self.folded, **later.folded},
        )  # fmt: skip


def surgery(trace: Trace, grouping: Grouping, kept: Kept) -> Surgery:
    """Return what has to be done so that only these units stay."""
    stays = np.append(atoms_kept(grouping, kept), True)  # CONSTANT = -1 finds the last entry
    numbers = {(n.module, n.attribute, n.item): int(stays[n.atoms].sum()) for n in trace.integers}
    selections = {
        n.module: np.flatnonzero(stays[n.atoms])
        for n in trace.norms
        if n.selects and not stays[n.atoms].all()
    }
    stands, folded = _removed_branches(trace, grouping, kept)
    bare = {path for path, stand in stands.items() if stand == "constant"} - {
        name.removesuffix(".bias") for name in trace.parameters
    }
    return Surgery(
        kept_indices(trace, grouping, kept),
        numbers,
        selections,
        frozenset(bare),
        trace.weight_norms,
        stands,
        folded,
    )


def _removed_branches(
    trace: Trace, grouping: Grouping, kept: Kept
) -> tuple[dict[str, Stand], dict[str, str]]:
    """Return what stands for the layers of groups that lose all channels, and the batch norms that go with them."""
    stands: dict[str, Stand] = {}
    folded: dict[str, str] = {}
    gone = [
        group
        for start, group in zip(grouping.offsets, grouping.groups, strict=True)
        if not kept[start : start + group.width].any()
    ]
    for group in gone:
        for producer in group.producers:
            stands[producer] = "empty"
        for norm in group.batch_norms:
            stands[norm.module] = "identity"
    for consumer in (consumer for group in gone for consumer in group.consumers):
        if stands.get(consumer.module) != "empty":
            stands[consumer.module] = "constant"
            behind = norm_behind(trace, consumer.op)
            if behind is not None:
                folded[consumer.module], stands[behind] = behind, "identity"
    return stands, folded


def operate(model: nn.Module, surgery: Surgery) -> nn.Module:
    """Return a NEW, smaller module of the user's own class; the given one is left as it was."""
    tensors = named_tensors(model)
    taken = {name: take(tensors[name], axes) for name, axes in _by_tensor(surgery.indices).items()}
    for norm in surgery.weight_norms:
        if norm.direction in taken:
            taken[norm.magnitude] = _rescaled(norm, tensors, taken, surgery.indices)
    small = copy_with(model, taken, tensors)
    keep_sigma(model, small)
    update_sizes(small, surgery)
    return small


def _rescaled(
    norm: WeightNorm, tensors: Mapping[str, Tensor], taken: Mapping[str, Tensor], indices: AxisIndex
) -> Tensor:
    """Return the magnitude with which what is left of a normalised weight is what it was."""
    magnitude = taken.get(norm.magnitude, tensors[norm.magnitude].detach())
    before = torch.norm_except_dim(tensors[norm.direction].detach(), 2, norm.axis)
    after = torch.norm_except_dim(taken[norm.direction], 2, norm.axis)
    rows = indices.get((norm.direction, norm.axis))
    if rows is not None:
        before = take(before, {norm.axis: rows})
    return magnitude * torch.where(before > 0, after / before, torch.ones_like(after))


def _by_tensor(indices: AxisIndex) -> dict[str, dict[int, NDArray[np.int64]]]:
    found: dict[str, dict[int, NDArray[np.int64]]] = {}
    for (name, axis), index in indices.items():
        found.setdefault(name, {})[axis] = index
    return found


def update_sizes(small: nn.Module, surgery: Surgery) -> None:
    """Make the modules of a model with smaller tensors agree with them."""
    for (module, attribute, item), value in surgery.numbers.items():
        set_number(small.get_submodule(module), attribute, item, value)
    for name, index in surgery.selections.items():
        norm = small.get_submodule(name)
        held = next(iter(norm.state_dict().values()))
        select_from(norm, torch.from_numpy(index).to(held.device))
    for name in surgery.biases:
        add_bias(small.get_submodule(name))
    parts = named_modules(small).values()
    training = [part for part in parts if part.training]
    if training:
        small.eval()  # looking at a weight under spectral_norm changes it in training
    for part in parts:
        recompute_weights(part)
        narrow(part)
        describe(part)
    for part in training:
        vars(part)["training"] = True
    replace_branches(small, surgery.stands, surgery.folded)


def add_bias(module: Any) -> None:
    """Give a convolution or linear layer without a bias one of zeros, in place."""
    weight: Tensor = module.weight
    if module.bias is None:
        size = weight.shape[1] * module.groups if getattr(module, "transposed", False) else weight.shape[0]
        module.bias = nn.Parameter(weight.new_zeros(size), requires_grad=weight.requires_grad)


def operate_on_meta(model: nn.Module, surgery: Surgery) -> nn.Module:
    """Return the smaller model as shapes only."""
    small = on_meta(model, {place: len(index) for place, index in surgery.indices.items()})
    update_sizes(small, surgery)
    return small
