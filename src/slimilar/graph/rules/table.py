"""One operator call, the table of rules, and what the rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from slimilar.graph.labels import Labels, axes_of
from slimilar.graph.reasons import fixed_size
from slimilar.graph.records import Signature, Value, by_name
from slimilar.utils.pytree import operands

if TYPE_CHECKING:
    from slimilar.graph.tracer import Tracer


@dataclass(eq=False)
class Call:
    """One operator as it was called."""

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    module: str
    signature: Signature
    ins: list[Tensor]  # the tensors that went in
    seen: list[Value]  # what was known about them
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

    @property
    def x(self) -> Tensor:
        """The first tensor that went in."""
        return self.ins[0]

    @property
    def dim(self) -> int:
        """The axis that was asked for, counted from the front."""
        return int(self["dim"]) % self.x.ndim


Rule = Callable[["Tracer", Call], list[Labels]]
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


def touching(labels: Labels, axes: Sequence[int], ndim: int) -> tuple[list[Tensor], list[Tensor]]:
    """Divide factors into those that vary along any of the axes and those that do not."""
    wanted = {a % ndim for a in axes}
    return (
        [f for f in labels if wanted & set(axes_of(f))],
        [f for f in labels if not wanted & set(axes_of(f))],
    )


def resolve(t: Tracer, call: Call, factor: Tensor) -> Tensor:
    """Make the removal of channels a matter of one axis where their labels vary along several.

    After `view(b, groups, c // groups, h, w)` channels can only leave by columns (all groups lose the same one)
    or by rows (a whole group leaves). One forward pass cannot tell which of the two the code allows: the longest
    axis is assumed to shrink first, and the next one where probing the code has shown otherwise.
    """
    axes = axes_of(factor)
    if len(axes) < 2:
        return factor
    level = t.level(call.signature)
    if level >= len(axes):
        t.freeze((factor,), fixed_size(f"operator {call.name} regroups channels by fixed sizes"))
        return factor
    free = sorted(axes, key=lambda a: (-factor.shape[a], -a))[level]
    for axis in axes:
        if axis != free:
            t.bind(factor, factor.narrow(axis, 0, 1))
    return factor


def tie_modulo(t: Tracer, factor: Tensor, axis: int, period: int) -> None:
    """Bind labels that are a multiple of `period` apart along an axis."""
    if period < factor.shape[axis]:
        blocks = factor.unflatten(axis, (-1, period))
        t.bind(blocks, blocks.narrow(axis, 0, 1))


def tie_blocks(t: Tracer, factor: Tensor, axis: int, size: int) -> None:
    """Bind labels that stand in one block of `size` along an axis."""
    blocks = factor.unflatten(axis, (-1, size))
    t.bind(blocks, blocks.narrow(axis + 1, 0, 1))
