"""One operator call, the table of rules, and what the rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from slimilar.graph.assumptions import Assumptions, Signature
from slimilar.graph.constants import Constants
from slimilar.graph.labels import Labels, axes_of
from slimilar.graph.reasons import fixed_size
from slimilar.graph.records import Piece, Run, Value, by_name
from slimilar.utils.pytree import operands

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy
    from slimilar.graph.values import Values


@dataclass(frozen=True, eq=False)
class Context:
    """What all calls of a forward pass share."""

    values: Values
    modules: Mapping[str, nn.Module]
    assumptions: Assumptions
    constants: Constants


@dataclass(eq=False)
class Call:
    """One operator as it was called: its arguments, its result, and what is known about them."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    module: str  # the path of the module that runs
    signature: Signature
    op: int  # its number in the forward pass
    ins: list[Tensor]  # the tensors that went in
    inputs: list[int]  # their numbers
    given: list[Any]  # all arguments, with a mark in place of each tensor
    seen: list[Value]  # what was known about the tensors
    context: Context
    _bound: dict[str, Any] | None = None
    _outs: list[Tensor] | None = None

    @property
    def bound(self) -> dict[str, Any]:
        """The arguments by name, defaults included."""
        if self._bound is None:
            self._bound = by_name(self.func, self.args, self.kwargs)
        return self._bound

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or a default where this form of the operator has none of that name."""
        return self.bound.get(name, default)

    @property
    def outs(self) -> list[Tensor]:
        """The tensors that came out."""
        if self._outs is None:
            self._outs = operands(self.result if type(self.result) in (tuple, list) else (self.result,))
        return self._outs

    @property
    def overwrites(self) -> bool:
        """Whether the output is the first input, or a tensor given for it."""
        return self.name.endswith("_") or "out" in self.kwargs

    def labels(self, tensor: Tensor | None) -> Labels:
        """Return the labels of a tensor."""
        return self.context.values.labels(tensor)

    def value(self, tensor: Tensor) -> Value:
        """Return what is known about a tensor."""
        return self.context.values.of(tensor)

    def index(self, tensor: Tensor) -> int:
        """Return the number of a tensor."""
        return self.context.values.index(tensor)

    def numbers(self, tensor: Tensor) -> Tensor:
        """Return the numbers in a tensor that must not depend on the model's input."""
        return self.context.constants.numbers(tensor)

    def knows(self, tensor: Tensor) -> bool:
        """Tell whether there are numbers in a tensor, or in one that it stands for."""
        return self.context.constants.known(tensor)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """All modules, by path."""
        return self.context.modules

    @property
    def level(self) -> int:
        """How far the assumption behind this operator has been weakened."""
        return self.context.assumptions.levels.get(self.signature, 0)

    @property
    def holds_sizes(self) -> bool:
        """Whether its module is assumed to hold a size that shrinks with the channels."""
        return self.signature in self.context.assumptions.held_sizes

    @property
    def is_fixed(self) -> bool:
        """Whether it is known to work at the original widths only."""
        return self.signature in self.context.assumptions.fixed_operators

    @property
    def selects(self) -> bool:
        """Whether its module chooses its own part of a residual stream."""
        return self.module in self.context.assumptions.selections

    @property
    def x(self) -> Tensor:
        """The first tensor that went in."""
        return self.ins[0]

    @property
    def dim(self) -> int:
        """The axis that was asked for, counted from the front."""
        return int(self["dim"]) % self.x.ndim


Rule = Callable[["LabelPolicy", Call], list[Labels]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table, under ATen names without their overloads; in-place forms are included."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = RULES[f"aten.{name}_"] = function
        return function

    return enter


def along_axis(labels: Labels, axis: int, ndim: int) -> tuple[Tensor | None, list[Tensor]]:
    """Return the labels along one axis as a vector, and the factors that vary along others."""
    axis %= ndim
    vector, rest = None, []
    for factor in labels:
        if factor.numel() == factor.shape[axis] > 1:  # it varies along no other
            vector = factor if ndim == 1 else factor.reshape(-1)
        else:
            rest.append(factor)
    return vector, rest


def along_channels(policy: LabelPolicy, labels: Labels, ndim: int) -> tuple[Tensor | None, list[Tensor]]:
    """Return the labels along the channel axis, and the other factors.

    Labels that vary over space too, because rows of a linear layer became an image, are bound to one for each channel.
    """
    vector, rest = along_axis(labels, 1, ndim)
    image = next((f for f in rest if 1 in axes_of(f) and 0 not in axes_of(f)), None)
    if vector is not None or image is None:
        return vector, rest
    return policy.merge(image, axes_of(image)[1:]).reshape(-1), [f for f in rest if f is not image]


def over_space(
    policy: LabelPolicy, labels: Labels, axes: Sequence[int], ndim: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Divide factors into those that space alone carries and all others, bound so that they do not vary over it."""
    mixed, rest = touching(labels, axes, ndim)
    alone = [f for f in mixed if set(axes_of(f)) <= set(axes)]
    bound = [
        policy.merge(f, sorted(set(axes_of(f)) & set(axes)))
        for f in mixed
        if not set(axes_of(f)) <= set(axes)
    ]
    return alone, rest + bound


def touching(labels: Labels, axes: Sequence[int], ndim: int) -> tuple[list[Tensor], list[Tensor]]:
    """Divide factors into those that vary along any of the axes and those that do not."""
    wanted = {a % ndim for a in axes}
    return (
        [f for f in labels if wanted & set(axes_of(f))],
        [f for f in labels if not wanted & set(axes_of(f))],
    )


def resolve(policy: LabelPolicy, call: Call, factor: Tensor) -> Tensor:
    """Make the removal of channels a matter of one axis where their labels vary along several.

    After `view(b, groups, c // groups, h, w)` channels can only leave by columns (all groups lose the same one)
    or by rows (a whole group leaves). One forward pass cannot tell which of the two the code allows: the longest
    axis is assumed to shrink first, and the next one where probing the code has shown otherwise. What varies along
    all axes but the batch's is an image, made of the rows of a linear layer: its channels come first.

    What leaves together has one label, that of the first: the heads of attention, say, whose channels are summed over.
    """
    axes = axes_of(factor)
    if len(axes) < 2:
        return factor
    free = shrinking_axis(call, factor)
    if free is None:
        policy.freeze((factor,), fixed_size(f"operator {call.name} regroups channels by fixed sizes"))
        return factor
    others = [axis for axis in axes if axis != free]
    if bool((factor >= 0).all()):
        return policy.merge(factor, others)
    for axis in others:  # what belongs to no channel cannot stand for others
        policy.bind(factor, factor.narrow(axis, 0, 1))
    return factor


def shrinking_axis(call: Call, factor: Tensor) -> int | None:
    """Return the axis of a factor that is assumed to shrink; None if none of them can."""
    axes = axes_of(factor)
    if len(axes) == 1:
        return axes[0]
    image = len(axes) > 2 and axes == tuple(range(1, factor.ndim))
    ranked = sorted(axes, key=lambda a: (not image or a != 1, -_count_along(factor, a), -a))
    return ranked[call.level] if call.level < len(ranked) else None


def _count_along(factor: Tensor, axis: int) -> int:
    """Return the number of different labels along an axis: images that share it do not count."""
    line = factor[tuple(slice(None) if a == axis else 0 for a in range(factor.ndim))]
    return len(set(line.tolist()))


def tie_modulo(policy: LabelPolicy, factor: Tensor, axis: int, period: int) -> None:
    """Bind labels that are a multiple of `period` apart along an axis."""
    if period < factor.shape[axis]:
        blocks = factor.unflatten(axis, (-1, period))
        policy.bind(blocks, blocks.narrow(axis, 0, 1))


def note_runs(policy: LabelPolicy, factor: Tensor, axis: int, places: Iterable[int]) -> None:
    """Note where the code cuts an axis: only if a channel of each part leaves does probing show what it means."""
    size = factor.shape[axis]
    edges = sorted({0, size, *(min(p, size) for p in places)})
    for start, end in pairwise(edges if size > 1 else []):
        atoms = factor.narrow(axis, start, end - start).numpy().reshape(-1)
        policy.note(Run(atoms[atoms >= 0]))


def note_piece(policy: LabelPolicy, factor: Tensor) -> None:
    """Note channels that become a tensor of their own."""
    atoms = factor.numpy().reshape(-1)
    policy.note(Piece(atoms[atoms >= 0]))


def tie_blocks(policy: LabelPolicy, factor: Tensor, axis: int, size: int) -> None:
    """Bind labels that stand in one block of `size` along an axis."""
    blocks = factor.unflatten(axis, (-1, size))
    policy.bind(blocks, blocks.narrow(axis + 1, 0, 1))
