"""What a trace tells, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from slimilar.graph.assumptions import Signature
from slimilar.graph.labels import Atoms, Labels, numbered, roots
from slimilar.graph.reasons import FreezeKind, Reason
from slimilar.utils.pytree import PLACE


@dataclass(frozen=True)
class ZeroPart:
    """Positions of a concatenated tensor that are zeros, and the module that made these."""

    axis: int
    start: int
    stop: int
    zeros_of: str


class Value(NamedTuple):  # of which there are hundreds: a dataclass takes several times as long to make
    """One tensor of the forward pass."""

    shape: tuple[int, ...]
    labels: Labels
    name: str | None  # the parameter or buffer that it is, if it is one
    dynamic: bool  # depends on the model's input
    uniform: bool  # one number everywhere, such as torch.ones(...)
    # The module that made it, if this number is zero: the first state of a recurrent layer.
    zeros_of: str | None = None
    zero_parts: tuple[ZeroPart, ...] = ()  # such zeros among what it was concatenated from


@dataclass(frozen=True, eq=False)
class Op:
    """One operator of the forward pass; its inputs and outputs are indices into `Trace.values`."""

    name: str
    module: str
    signature: Signature
    func: Any
    given: list[Any]  # positional arguments, then those of the names in `keywords`; `PLACE` for each tensor
    keywords: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name, defaults included; tensors are the indices of their values, wrapped in `Ref`."""
        inputs = iter(self.inputs)
        found = [_placed(x, inputs) for x in self.given]
        count = len(found) - len(self.keywords)
        return by_name(self.func, found[:count], dict(zip(self.keywords, found[count:], strict=True)))


def _placed(x: Any, inputs: Iterator[int]) -> Any:
    """Return an argument with the next of the inputs wherever it has a tensor."""
    if type(x) in (list, tuple):
        return [_placed(y, inputs) for y in x]
    return Ref(next(inputs)) if x is PLACE else x


@cache
def _parameters(func: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    arguments = func._schema.arguments
    return tuple(a.name for a in arguments), {a.name: a.default_value for a in arguments}


def by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an ATen operator by name, defaults included."""
    names, defaults = _parameters(func)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


@dataclass(frozen=True)
class Ref:
    """A tensor argument of an `Op`."""

    value: int


@dataclass(frozen=True, eq=False)
class Axis:
    """The atoms of one axis of one parameter or buffer: `first`, `first + 1`, ..."""

    tensor: str
    axis: int
    size: int
    first: int


@dataclass(frozen=True, eq=False)
class Write:
    """An operator that creates channels: the labels of its output along `axis`."""

    op: int
    axis: int
    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Read:
    """An operator that sums over channels: input value, its axis, and the weight's atoms it is multiplied with."""

    op: int
    value: int
    axis: int
    atoms: Atoms
    weight: Atoms


@dataclass(frozen=True, eq=False)
class Reduction:
    """An operator that sums over channels without a weight of its own: a norm, a product of two activations.

    Without some channels it returns what it would with zeros in their place.
    """

    op: int
    value: int
    axis: int
    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm: the labels of its input, and the names of weight, bias, running mean and variance."""

    op: int
    module: str
    atoms: Atoms
    tensors: tuple[str | None, str | None, str | None, str | None]
    eps: float
    selects: bool  # chooses its own part of the stream it reads


@dataclass(frozen=True, eq=False)
class Integer:
    """A whole number held by a module that equals the number of channels kept among `atoms`.

    With `item`, the number is that entry of a list or tuple.
    """

    module: str
    attribute: str
    item: int | None
    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Run:
    """Channels between two places at which the code cuts; probing has to remove some of each run."""

    atoms: Atoms


@dataclass(frozen=True, eq=False)
class Piece:
    """Channels that become a tensor of their own, which must not become empty."""

    atoms: Atoms


@dataclass(frozen=True, eq=False)
class FixedWrite:
    """An operator that creates channels by a weight in which none can be followed, and how many."""

    op: int
    width: int


@dataclass(frozen=True)
class WeightNorm:
    """A weight that is computed as magnitude * direction / norm of the direction over all axes but one.

    Where the direction loses indices of the other axes, the magnitude takes in what the norm loses.
    """

    magnitude: str
    direction: str
    axis: int


Fact = Write | Read | Reduction | Norm | Integer | Run | Piece | FixedWrite | WeightNorm


@dataclass(frozen=True, eq=False)
class Freeze:
    """Channels that have to stay, and why."""

    atoms: Atoms
    why: Reason
    op: int

    @property
    def reason(self) -> str:
        """The reason as a sentence."""
        return self.why.text

    @property
    def kind(self) -> FreezeKind:
        """The kind of the reason."""
        return self.why.kind


@dataclass(frozen=True)
class NotRun:
    """A module that did not run on the example."""

    module: str
    width: int
    error: str | None  # what it raised in training, if it ran there


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything one forward pass tells about the channels of a model."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    axes: tuple[Axis, ...]
    atom_count: int
    ties: Atoms  # pairs of atoms that leave together, (2, n)
    sums: Atoms  # the same, but because two streams are added
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]
    norms: tuple[Norm, ...]
    integers: tuple[Integer, ...]
    freezes: tuple[Freeze, ...]
    runs: tuple[Atoms, ...]  # see `Run`
    pieces: tuple[Atoms, ...]  # see `Piece`
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Tensor]  # values neither made by an operator nor held by the model under a name
    parameters: Mapping[str, tuple[int, ...]]  # name -> shape, tied ones once
    meta: bool  # shapes were enough
    reductions: tuple[Reduction, ...] = ()
    fixed_writes: tuple[FixedWrite, ...] = ()
    weight_norms: tuple[WeightNorm, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    why_values: str = ""  # what shapes alone raised, where they were not enough

    @property
    def summing(self) -> tuple[Read | Reduction, ...]:
        """All operators that sum over channels, with a weight and without: where removed channels count as zero."""
        return (*self.reads, *self.reductions)

    @cached_property
    def _roots(self) -> tuple[Atoms, Atoms]:
        """The lowest atom of every atom's class, before and after residual additions join them."""
        alone = roots(np.arange(self.atom_count), self.ties)
        return alone, roots(alone, self.sums)

    @cached_property
    def together(self) -> Atoms:
        """The class of every atom, when all that leaves together is one class."""
        return numbered(self._roots[1])

    @cached_property
    def summed(self) -> Atoms:
        """The classes that residual additions join: what they add was not one channel before."""
        alone = self._roots[0]
        a, b = self.sums
        return np.unique(self.together[a[alone[a] != alone[b]]])
