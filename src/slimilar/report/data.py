"""The data of the page: a plan as plain values that become JSON.

Removal orders, the cost model, gamma and beta are enough for the page to compute every state by itself. Widths, FLOPs
and parameters at any threshold, rounding and override equal those of `Plan.at` exactly.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from slimilar.criteria import Weights
from slimilar.criteria.similarity import moments_of
from slimilar.graph.groups import ChannelGroup, Indices
from slimilar.planning.cost import CostModel
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import dictated_rounding
from slimilar.report.flow import Row, flow
from slimilar.similarity.removal_order import RemovalOrder

if TYPE_CHECKING:
    from torch import Tensor

Json = dict[str, Any]


def describe(plan: Plan, tensors: Mapping[str, Tensor]) -> Json:
    """Return a plan as data. Of the tensors, only gamma and beta of batch norms are read."""
    modules = _Names()
    vectors = _Vectors(plan)
    rows = [_row(row, vectors) for row in flow(plan)]
    weights = Weights(tensors)
    return {
        "criterion": plan.criterion,
        "note": plan.note,
        "minChannels": plan.min_channels,
        "groups": [
            _group(group, order, weights, modules)
            for group, order in zip(plan.groups, plan.orders, strict=True)
        ],
        "rows": rows,
        "costs": _costs(plan.costs, vectors, modules),
        "vectors": vectors.found,
        "modules": modules.found,
    }


def pack(values: ArrayLike, dtype: DTypeLike) -> str:
    """Return numbers as base64 of their little-endian bytes.

    >>> pack([1, 2], "<i4")
    'AQAAAAIAAAA='
    """
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


class _Names:
    """Strings that occur often, each stored once."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self.found)
            self.found.append(name)
        return self._index[name]


class _Vectors:
    """Vectors of units, encoded as how often each group occurs in them.

    `[fixed, [group, times], ...]` where every unit of the group occurs equally often, and
    `[group, [times of unit 0, of unit 1, ...]]` where they differ.
    """

    def __init__(self, plan: Plan) -> None:
        grouping = plan.structure.grouping
        order = {id(g): i for i, g in enumerate(plan.groups)}
        spans = zip(grouping.groups, grouping.offsets, strict=True)
        self.spans = sorted((start, start + g.width, order[id(g)]) for g, start in spans if id(g) in order)
        self.found: list[list[Any]] = []
        self._index: dict[bytes, int] = {}

    def index(self, units: Indices) -> int:
        key = units.tobytes()
        if key not in self._index:
            self._index[key] = len(self.found)
            self.found.append(self._encode(units))
        return self._index[key]

    def _encode(self, units: Indices) -> list[Any]:
        entries: list[Any] = []
        counted = 0
        for start, end, g in self.spans:
            inside = units[(units >= start) & (units < end)]
            if len(inside):
                times = np.bincount(inside - start, minlength=end - start)
                uniform = times.min() == times.max()
                entries.append([g, int(times[0]) if uniform else times.tolist()])
                counted += len(inside)
        return [len(units) - counted, *entries]


def _costs(costs: CostModel, vectors: _Vectors, modules: _Names) -> Json:
    found = [vectors.index(v) for v in costs.vectors]
    return {
        "terms": [
            [modules.index(t.module), t.flops, t.macs, *(found[v] for v in t.vectors)] for t in costs.terms
        ],
        "parameters": [
            [modules.index(t.module), t.flops, *(found[v] for v in t.vectors)] for t in costs.parameters
        ],
    }


def _group(group: ChannelGroup, order: RemovalOrder, weights: Weights, modules: _Names) -> Json:
    return {
        "name": group.name,
        "width": group.width,
        "multiple": dictated_rounding("auto").of(group),
        "removed": pack(order.removed, "<i4"),
        "heights": pack(order.heights, "<f8"),
        "representative": pack(order.representative, "<i4"),
        "residual": group.residual,
        "fixed": _by_reason(group.fixed),
        "producers": [modules.index(name) for name in group.producers],
        "consumers": [modules.index(r.module) for r in group.consumers],
        "norms": _norms(group, weights, modules),
    }


def _by_reason(fixed: Mapping[int, str]) -> list[list[Any]]:
    reasons: dict[str, list[int]] = {}
    for unit, reason in sorted(fixed.items()):
        reasons.setdefault(reason, []).append(unit)
    return [[reason, units] for reason, units in reasons.items()]


def _norms(group: ChannelGroup, weights: Weights, modules: _Names) -> list[Json]:
    """Return gamma and beta of every unit in every batch norm that normalises it, if they are known."""
    found = []
    for norm in group.batch_norms:
        if all(
            name is None or name in weights.tensors for name in (norm.weight, norm.bias, norm.running_mean)
        ):
            beta, gamma = (t.float().numpy() for t in moments_of(norm, weights))
            found += [
                {
                    "module": modules.index(norm.module),
                    "gamma": pack(gamma[at], "<f4"),
                    "beta": pack(beta[at], "<f4"),
                }
                for at in norm.positions.T
            ]
    return found


def _row(row: Row, vectors: _Vectors) -> Json:
    entry: Json = {
        "kind": row.kind,
        "name": row.name,
        "inputs": row.inputs,
        "lane": row.lane,
        "shape": row.shape,
    }
    if row.units is not None:
        entry |= {"vector": vectors.index(row.units), "width": len(row.units), "reason": row.reason}
    return entry
