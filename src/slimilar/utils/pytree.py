"""Tensors inside nested lists, tuples, dicts and objects: what a model takes and what it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

from torch import Tensor, device, dtype, layout, memory_format, nn

from slimilar.errors import InvalidInput

Example = Any  # a tensor, a tuple of positional arguments, or a dict of keyword arguments


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that an example input stands for."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if isinstance(example, Tensor):
        return (example,), {}
    raise InvalidInput(
        "example input must be a tensor, a tuple of positional arguments or a dict of keyword arguments, "
        f"got {type(example).__name__}: pass for instance torch.randn(1, 3, 224, 224)"
    )


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply a function to every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, x) for x in tree))
    if isinstance(tree, tuple | list):
        return type(tree)([map_tensors(function, x) for x in tree])
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, x) for key, x in tree.items()}
    return tree


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples, dicts and objects."""
    if isinstance(tree, Tensor):
        yield tree
    for part in _parts(tree):
        yield from tensors_in(part)


def foreign_in(tree: Any) -> Iterator[Any]:
    """Yield what may hold numbers of a model's output, but no tensor: arrays, generators, objects that are closed."""
    if isinstance(tree, _LEAVES):
        return
    if isinstance(tree, Iterator) or not (_is_container(tree) or hasattr(tree, "__dict__") or _slots(tree)):
        yield tree
    for part in _parts(tree):
        yield from foreign_in(part)


_LEAVES = (
    Tensor, type(None), bool, int, float, complex, str, bytes, type, Enum, nn.Module, dtype, device, layout,
    memory_format, FunctionType, MethodType, BuiltinFunctionType,
)  # fmt: skip


def _is_container(tree: Any) -> bool:
    return isinstance(tree, tuple | list | set | frozenset | deque | Mapping)


def _parts(tree: Any) -> Iterable[Any]:
    """Return the parts of a container, or the attributes of an object."""
    if isinstance(tree, Mapping):
        return tree.values()
    if _is_container(tree):
        return cast(Iterable[Any], tree)
    return () if isinstance(tree, _LEAVES) else _attributes(tree)


def _attributes(tree: Any) -> list[Any]:
    """Return the attributes of an object, those in slots too."""
    held = [getattr(tree, name) for name in _slots(tree) if hasattr(tree, name)]
    return [*vars(tree).values(), *held] if hasattr(tree, "__dict__") else held


def _slots(tree: Any) -> list[str]:
    found = [vars(kind).get("__slots__", ()) for kind in type(tree).__mro__]
    names = [name for slots in found for name in ((slots,) if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def operands(arguments: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among the arguments or results of an ATen operator: bare, or in one list.

    The same as `tensors_in`, for the only shapes that an operator knows, and several times faster.
    """
    found: list[Tensor] = []
    for x in arguments:
        if isinstance(x, Tensor):
            found.append(x)
        elif type(x) in (list, tuple):
            found += [y for y in x if isinstance(y, Tensor)]
    return found


PLACE = "<tensor>"  # stands for a tensor among the arguments of an operator


def separate(arguments: Iterable[Any]) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors among the arguments of an ATen operator, and the arguments with `PLACE` instead of each."""
    tensors: list[Tensor] = []
    rest: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            tensors.append(x)
            rest.append(PLACE)
        elif type(x) is list and not (x and type(x[0]) is int):
            tensors += [y for y in x if isinstance(y, Tensor)]
            rest.append([PLACE if isinstance(y, Tensor) else y for y in x])
        elif type(x) is tuple:
            tensors += [y for y in x if isinstance(y, Tensor)]
            rest.append(tuple(PLACE if isinstance(y, Tensor) else y for y in x))
        else:
            rest.append(x)
    return tensors, rest
