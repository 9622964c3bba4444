"""What a network costs, as a function of the channels that stay.

FLOPs are counted in the paper's convention: convolution and linear 2 per multiply-add, and 1 per output where there
is a bias; normalisation 2 per element; an activation function 1 per element; pooling the kernel's area per output
element; additions of streams, concatenation and moving data nothing. MACs are the multiply-adds alone. Both are for
the example input as it was given, batch included. Parameters are counted once where they are tied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from slimilar.graph import rules as ops
from slimilar.graph.activations import ACTIVATIONS
from slimilar.graph.groups import FIXED, Grouping
from slimilar.graph.labels import axes_of
from slimilar.graph.records import Op, Ref, Trace, Value
from slimilar.graph.tracing import trace
from slimilar.utils.modules import check_model
from slimilar.utils.pytree import Example

Counts = NDArray[np.int64]
Vector = NDArray[np.int64]


@dataclass(frozen=True)
class Cost:
    """FLOPs in the paper's convention, multiply-adds, parameters; `modules` has (flops, macs, params) of each."""

    flops: int
    macs: int
    params: int
    modules: Mapping[str, tuple[int, int, int]]

    def __str__(self) -> str:
        return f"{human(self.flops)} FLOPs, {human(self.macs)} MACs, {human(self.params)} parameters"


def human(number: float) -> str:
    """Return a number with a unit, for display.

    >>> human(627_360_000), human(8.21e9), human(512)
    ('627.36 M', '8.21 G', '512')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f}"


@dataclass(frozen=True, eq=False)
class _Term:
    """`flops` and `macs` times the product of the widths of some vectors of units."""

    module: str
    flops: int
    macs: int
    vectors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CostModel:
    """The cost of every part of a network as a product of widths."""

    terms: tuple[_Term, ...]
    parameters: tuple[_Term, ...]  # the size of each stands in `flops`
    vectors: tuple[Vector, ...]  # units, numbered over all groups; FIXED always stays

    def at(self, kept: NDArray[np.bool_]) -> Cost:
        """Return the cost when these units stay."""
        return self._total(self._widths(kept).tolist())

    def total(self, kept: NDArray[np.bool_], kind: str) -> int:
        """Return the FLOPs, MACs or parameters alone when these units stay; several times faster than `at`."""
        amounts, vectors = self.products[kind]
        sizes = np.append(self._widths(kept), 1)[vectors].prod(axis=1)
        return int(amounts @ sizes)

    def _widths(self, kept: NDArray[np.bool_]) -> Counts:
        """Return how many of each vector's units stay."""
        units, ends = self._units
        sums = np.append(0, np.cumsum(np.append(kept, True)[units]))[ends]
        return np.diff(sums)

    @cached_property
    def _units(self) -> tuple[Vector, Counts]:
        """The units of all vectors side by side, and where each ends, from 0 on."""
        lengths = [0, *map(len, self.vectors)]
        return np.concatenate([np.empty(0, np.int64), *self.vectors]), np.cumsum(lengths)

    @cached_property
    def products(self) -> dict[str, tuple[Counts, Counts]]:
        """The amounts of all terms, and the vectors of each in a row, filled up with one of width 1."""
        tables = {"flops": self.terms, "macs": self.terms, "params": self.parameters}
        found = {}
        for kind, terms in tables.items():
            amounts = np.array([t.macs if kind == "macs" else t.flops for t in terms], np.int64)
            most = max((len(t.vectors) for t in terms), default=0)
            rows = [[*t.vectors, *[-1] * (most - len(t.vectors))] for t in terms]
            found[kind] = amounts, np.array(rows, np.int64).reshape(len(terms), most)
        return found

    def _total(self, widths: Sequence[int]) -> Cost:
        modules: dict[str, list[int]] = {}
        for kinds, terms in (((0, 1), self.terms), ((2,), self.parameters)):
            for term in terms:
                size = math.prod(widths[v] for v in term.vectors)
                entry = modules.setdefault(term.module, [0, 0, 0])
                for kind, amount in zip(kinds, (term.flops, term.macs), strict=False):
                    entry[kind] += amount * size
        flops, macs, params = (sum(m[i] for m in modules.values()) for i in range(3))
        return Cost(flops, macs, params, {k: (v[0], v[1], v[2]) for k, v in modules.items()})

    def along(self, left_at: NDArray[np.int64], states: int) -> tuple[Counts, Counts, Counts]:
        """Return FLOPs, MACs and parameters at states 0, 1, ... where unit u is gone from state `left_at[u]` on."""
        never = np.append(left_at, states)
        widths = []
        for v in self.vectors:
            leaving = np.bincount(np.minimum(never[v], states), minlength=states + 1)[:states]
            widths.append(len(v) - np.cumsum(leaving))

        def total(terms: Sequence[_Term], amount: Callable[[_Term], int]) -> Counts:
            result = np.zeros(states, np.int64)
            for term in terms:
                if amount(term):
                    result += amount(term) * math.prod((widths[i] for i in term.vectors), start=np.int64(1))
            return result

        return (
            total(self.terms, lambda t: t.flops),
            total(self.terms, lambda t: t.macs),
            total(self.parameters, lambda t: t.flops),
        )


class _Counter:
    def __init__(self, found: Trace, grouping: Grouping, gained: AbstractSet[str]) -> None:
        self.trace, self.units, self._gained = found, np.append(grouping.unit_of, FIXED), gained
        self.vectors: list[Vector] = []
        self.known: dict[bytes, int] = {}

    def vector(self, atoms: NDArray[np.int64]) -> int:
        units = self.units[atoms]  # CONSTANT = -1 finds the last entry, FIXED
        key = units.tobytes()
        if key not in self.known:
            self.known[key] = len(self.vectors)
            self.vectors.append(units)
        return self.known[key]

    def size(self, value: Value) -> tuple[int, list[int]]:
        """Return the number of elements: a constant and the vectors whose widths it is multiplied with."""
        labelled = {a for f in value.labels for a in axes_of(f)}
        plain = math.prod(n for a, n in enumerate(value.shape) if a not in labelled)
        return plain, [self.vector(f.numpy().reshape(-1)) for f in value.labels]

    def axis(self, value: Value, axis: int) -> tuple[int, list[int]]:
        """Return the length of one axis in the same form."""
        for f in value.labels:
            if axes_of(f) == (axis,):
                return 1, [self.vector(f.numpy().reshape(-1))]
        return value.shape[axis], []

    def value(self, op: Op, name: str) -> Value | None:
        ref = op.arguments.get(name)
        return self.trace.values[ref.value] if isinstance(ref, Ref) else None

    def has_bias(self, op: Op) -> bool:
        return self.value(op, "bias") is not None or op.module in self._gained

    def out(self, op: Op) -> Value:
        return self.trace.values[op.outputs[0]]

    def term(self, op: Op, flops: int, macs: int, *sizes: tuple[int, list[int]]) -> _Term:
        plain = math.prod(n for n, _ in sizes)
        return _Term(op.module, flops * plain, macs * plain, tuple(v for _, vs in sizes for v in vs))


_Rule = Callable[[_Counter, Op], list[_Term]]


def _convolution(c: _Counter, op: Op) -> list[_Term]:
    x, weight = c.value(op, "input"), c.value(op, "weight")
    assert x is not None
    assert weight is not None
    outer = c.size(x) if op.arguments.get("transposed") else c.size(c.out(op))
    terms = [
        c.term(op, 2 * math.prod(weight.shape[2:]), math.prod(weight.shape[2:]), outer, c.axis(weight, 1))
    ]
    if c.has_bias(op):
        terms.append(c.term(op, 1, 0, c.size(c.out(op))))
    return terms


def _contraction(c: _Counter, op: Op) -> list[_Term]:
    values = [c.trace.values[i] for i in op.inputs]
    with_bias = op.name.startswith(("aten.add", "aten.badd"))
    a, b = values[with_bias:][:2]
    inner = c.axis(a, len(a.shape) - 1)
    if not inner[1]:  # the first state of a recurrent layer: zeros, as many as the weight reads
        inner = c.axis(b, len(b.shape) - (1 if op.name == "aten.linear" else 2))
    terms = [c.term(op, 2, 1, c.size(c.out(op)), inner)]
    if with_bias or c.has_bias(op):
        terms.append(c.term(op, 1, 0, c.size(c.out(op))))
    return terms


def _per_element(flops: int) -> _Rule:
    return lambda c, op: [c.term(op, flops, 0, c.size(c.out(op)))]


def _per_input(c: _Counter, op: Op) -> list[_Term]:
    return [c.term(op, 1, 0, c.size(c.trace.values[op.inputs[0]]))]


def _pooling(c: _Counter, op: Op) -> list[_Term]:
    kernel: Any = op.arguments["kernel_size"]
    axes = int(op.name.split("pool")[1][0])
    area = kernel[0] ** axes if len(kernel) == 1 else math.prod(kernel)
    return [c.term(op, area, 0, c.size(c.out(op)))]


def _rules() -> dict[str, _Rule]:
    table: dict[str, _Rule] = {}
    for name, rule in ops.RULES.items():
        if rule is ops.convolution:
            table[name] = _convolution
        elif rule is ops.contraction:
            table[name] = _contraction
        elif rule in (ops.batch_norm, ops.group_norm, ops.layer_norm):
            table[name] = _per_element(2)
        elif "pool" in name and "unpool" not in name:
            table[name] = _per_input if "adaptive" in name else _pooling
    table["aten.mean"] = _per_input
    for name in ACTIVATIONS:
        table[f"aten.{name}"] = table[f"aten.{name}_"] = _per_element(1)
    return table


_RULES = _rules()


def _biases(found: Trace) -> set[int]:
    """Return the additions that are the bias of a linear layer: torch adds it apart where memory is not in order."""
    places, last = set(), ""
    for i, op in enumerate(found.ops):
        held = [found.values[v] for v in op.inputs]
        vector = any(v.name is not None and len(v.shape) == 1 for v in held)
        if op.name in ("aten.add", "aten.add_") and _RULES.get(last) is _contraction and vector:
            places.add(i)
        if op.name not in ("aten.view", "aten._unsafe_view"):
            last = op.name
    return places


def cost_model(found: Trace, grouping: Grouping, gained: AbstractSet[str] = frozenset()) -> CostModel:
    """Return the cost of a traced network as a function of the units that stay.

    `gained` are convolutions, none of them transposed, and linear layers that have got a bias since.
    """
    counter = _Counter(found, grouping, gained)
    terms = [t for op in found.ops if op.name in _RULES for t in _RULES[op.name](counter, op)]
    terms += [t for i in sorted(_biases(found)) for t in _per_element(1)(counter, found.ops[i])]
    held = {(a.tensor, a.axis): np.arange(a.first, a.first + a.size) for a in found.axes}
    parameters = []
    sizes = {**found.parameters, **{f"{m}.bias": found.parameters[f"{m}.weight"][:1] for m in gained}}
    held |= {(f"{m}.bias", 0): held[f"{m}.weight", 0] for m in gained if (f"{m}.weight", 0) in held}
    for name, shape in sizes.items():
        plain = math.prod(n for a, n in enumerate(shape) if (name, a) not in held)
        vectors = tuple(counter.vector(held[name, a]) for a in range(len(shape)) if (name, a) in held)
        parameters.append(_Term(name.rpartition(".")[0], plain, 0, vectors))
    return CostModel(tuple(terms), tuple(parameters), tuple(counter.vectors))


def count(model: nn.Module, example: Example) -> Cost:
    """Count FLOPs (the paper's convention), multiply-adds and parameters; in total and per module.

    >>> import torch
    >>> count(nn.Conv2d(3, 8, 3, bias=False), torch.zeros(1, 3, 10, 10)).flops == 2 * 8 * 8 * 8 * 3 * 9
    True
    """
    found = trace(check_model(model), example)
    nothing_leaves = Grouping((), (), np.full(found.atom_count, FIXED, np.int64), (), 0)
    return cost_model(found, nothing_leaves).at(np.ones(0, np.bool_))
