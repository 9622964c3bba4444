"""Which groups may lose their last channel: the inner channels of a residual branch, which then goes altogether."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from slimilar.graph import rules
from slimilar.graph.groups import ChannelGroup, Grouping
from slimilar.graph.labels import Atoms
from slimilar.graph.records import Op, Trace
from slimilar.graph.structure import Structure

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def with_branches(
    model: nn.Module, structure: Structure, excluded: AbstractSet[str] = frozenset()
) -> Structure:
    """Return a structure that knows which groups may lose all channels: none with an excluded layer."""
    found = _removable(model, structure.trace, structure.grouping, excluded)
    return replace(structure, branches=found)


def _removable(
    model: nn.Module, trace: Trace, grouping: Grouping, excluded: AbstractSet[str]
) -> dict[int, tuple[int, ...]]:
    """Return the groups, by number, without whose channels a residual branch is a constant.

    Each comes with the groups in front of it that nothing else reads: these go with it.
    """
    runs = _runs(trace)
    unusual = _reached_otherwise(trace, grouping)
    plain = {
        g: group
        for g, group in enumerate(grouping.groups)
        if g not in unusual
        and not excluded & set(group.producers)
        and not group.residual
        and not group.fixed
        and group.consumers
        and _is_made_of_plain_layers(model, group, runs)
    }
    return {
        g: _in_front(plain, set(group.producers))
        for g, group in plain.items()
        if any(_joins_a_stream(trace, consumer.op) for consumer in group.consumers)
        and all(
            _joins_a_stream(trace, consumer.op) or _returns_to(plain, consumer.module, group)
            for consumer in group.consumers
        )
    }


def _returns_to(plain: Mapping[int, ChannelGroup], layer: str, group: ChannelGroup) -> bool:
    """Tell whether only a group's own producers read what a layer writes, as in squeeze and excitation."""
    written = [other for other in plain.values() if layer in other.producers]
    read_by = {consumer.module for other in written for consumer in other.consumers}
    return bool(written) and read_by <= set(group.producers)


def _in_front(plain: Mapping[int, ChannelGroup], removed: set[str]) -> tuple[int, ...]:
    """Return the groups that only removed layers read, and those that only these read."""
    found: list[int] = []
    while more := [
        g for g, group in plain.items() if g not in found and {c.module for c in group.consumers} <= removed
    ]:
        found += more
        removed = removed.union(*(plain[g].producers for g in more))
    return tuple(found)


def without_branches(structure: Structure, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return what stays if the groups in front of every branch that has gone go too."""
    kept, grouping = kept.copy(), structure.grouping
    ends = [*grouping.offsets[1:], grouping.unit_count]
    for g, in_front in structure.branches.items():
        if not kept[grouping.offsets[g] : ends[g]].any():
            for other in in_front:
                kept[grouping.offsets[other] : ends[other]] = False
    return kept


def _runs(trace: Trace) -> Counter[str]:
    """Return how many operators on activations run in each module."""
    return Counter(op.module for op in trace.ops if any(trace.values[v].dynamic for v in op.outputs))


def _is_made_of_plain_layers(model: nn.Module, group: ChannelGroup, runs: Counter[str]) -> bool:
    """Tell whether the group's layers can be replaced: plain ones, that run once, and belong to the group alone."""
    layers = {*group.producers, *(c.module for c in group.consumers)}
    norms = {b.module for b in group.batch_norms}
    whole = all((m.units >= 0).all() for m in group.members)
    owners = {m.tensor.rpartition(".")[0] for m in group.members}
    return (
        whole
        and owners == layers | norms
        and all(type(model.get_submodule(path)) in LAYERS for path in layers)
        and all(isinstance(model.get_submodule(path), NORMS) for path in norms)
        and all((c.units >= 0).all() and c.module not in group.producers for c in group.consumers)
        and all(runs[path] == 1 for path in layers | norms)
    )


def _joins_a_stream(trace: Trace, op: int) -> bool:
    """Tell whether what an operator writes is added to something else: without that nothing would be left."""
    written = [w.atoms[w.atoms >= 0] for w in trace.writes if w.op == op]
    return any(np.isin(trace.together[atoms], trace.summed).all() for atoms in written)


def _reached_otherwise(trace: Trace, grouping: Grouping) -> set[int]:
    """Return the groups whose channels pass an operator that may not run without any: pooling, sums, views."""
    ends = {fact.op for facts in (trace.reads, trace.writes) for fact in facts}
    found = [r.atoms for r in trace.reductions]
    for i, op in enumerate(trace.ops):
        if i not in ends and not _runs_without_channels(trace, op):
            found += [f.numpy().reshape(-1) for v in op.outputs for f in trace.values[v].labels]
    return _groups_of(grouping, np.concatenate([np.empty(0, np.int64), *found]))


def _runs_without_channels(trace: Trace, op: Op) -> bool:
    """Tell whether an operator runs on a tensor without channels: also a mean over space, which keeps the channels."""
    pools = (
        op.name == "aten.mean" and trace.values[op.inputs[0]].labels and trace.values[op.outputs[0]].labels
    )
    known = rules.RULES.get(op.name) in (rules.batch_norm, rules.elementwise)
    return rules.is_pointwise(op.func) or known or bool(pools)


def _groups_of(grouping: Grouping, atoms: Atoms) -> set[int]:
    units = np.unique(grouping.unit_of[atoms[atoms >= 0]])
    return set((np.searchsorted(grouping.offsets, units[units >= 0], side="right") - 1).tolist())


def norm_behind(trace: Trace, op: int) -> str | None:
    """Return the batch norm that alone takes what an operator returns, if its module runs once."""
    users = [user for user in trace.ops if trace.ops[op].outputs[0] in user.inputs]
    if len(users) != 1 or rules.RULES.get(users[0].name) is not rules.batch_norm:
        return None
    module, statistics = users[0].module, users[0].arguments.get("running_mean")
    inside = (name for name in _runs(trace) if name == module or name.startswith(f"{module}."))
    alone = sum(_runs(trace)[name] for name in inside) == 1  # no activation of its own, which would be lost
    return module if alone and statistics is not None else None
