"""A surgery as JSON and back, and the check that one fits a model: what a file says is not believed.

Indices must rise and lie inside the axis they index, numbers must not grow: so nothing that a file says can make
a model larger than its class already is, or set what is not a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from torch import nn

from slimilar.errors import StoreError
from slimilar.surgery.branches import LAYERS, NORMS
from slimilar.surgery.channel_selection import can_select
from slimilar.surgery.removed_branches import Stand
from slimilar.surgery.rewrite import Surgery
from slimilar.utils.modules import named_tensors

T = TypeVar("T")
Json = dict[str, Any]


def encode(surgery: Surgery) -> Json:
    """Return a surgery as data for JSON; equal lists of indices, of which there are many, are written once."""
    sets: dict[tuple[int, ...], int] = {}

    def number(index: NDArray[np.int64]) -> int:
        return sets.setdefault(tuple(index.tolist()), len(sets))

    indices = [[name, axis, number(index)] for (name, axis), index in surgery.indices.items()]
    selections = [[module, number(index)] for module, index in surgery.selections.items()]
    return {
        "sets": [list(entry) for entry in sets],
        "indices": indices,
        "numbers": [[*place, value] for place, value in surgery.numbers.items()],
        "selections": selections,
        "biases": sorted(surgery.biases),
        "stands": [list(entry) for entry in surgery.stands.items()],
        "folded": [list(entry) for entry in surgery.folded.items()],
    }


def decode(data: Any) -> Surgery:
    """Return the surgery that some data describes, or raise: nothing is assumed about the data."""
    fields = ("sets", "indices", "numbers", "selections", "biases")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in fields):
        raise _odd("an object with the lists " + ", ".join(fields))
    sets = [_rising(entry) for entry in data["sets"]]
    return Surgery(
        _mapping(data["indices"], 3, lambda e: (_text(e[0]), _count(e[1])), lambda e: _pick(sets, e[2])),
        _mapping(data["numbers"], 4, _place, lambda e: _count(e[3])),
        _mapping(data["selections"], 2, lambda e: _text(e[0]), lambda e: _pick(sets, e[1])),
        frozenset(_text(entry) for entry in data["biases"]),
        stands=_mapping(_list(data, "stands"), 2, lambda e: _text(e[0]), lambda e: _stand(e[1])),
        folded=_mapping(_list(data, "folded"), 2, lambda e: _text(e[0]), lambda e: _text(e[1])),
    )


def check(surgery: Surgery, model: nn.Module) -> None:
    """Refuse a surgery that does not fit a model."""
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    modules = dict(model.named_modules())
    for (name, axis), index in surgery.indices.items():
        shape = shapes.get(name)
        if shape is None:
            raise _unfit(f"there is no tensor {name!r} in it")
        if axis >= len(shape) or (len(index) and index[-1] >= shape[axis]):
            raise _unfit(f"{name} of shape {shape} has no such channels on axis {axis}")
    for module, attribute, item in surgery.numbers:
        held = _held(modules.get(module), attribute, item)
        if held is None or surgery.numbers[module, attribute, item] > held:
            raise _unfit(f"{module or 'the model'} holds no such size {attribute!r}")
    for module, index in surgery.selections.items():
        _check_selection(modules.get(module), module, index)
    for module in surgery.biases:
        if not isinstance(modules.get(module), nn.modules.conv._ConvNd | nn.Linear):
            raise _unfit(f"{module!r} is no convolution or linear layer in it")
    _check_branches(surgery, modules)


def _check_branches(surgery: Surgery, modules: Mapping[str, nn.Module]) -> None:
    """Refuse to replace what is no plain layer or batch norm."""
    for path, stand in surgery.stands.items():
        if type(modules.get(path)) not in (NORMS if stand == "identity" else LAYERS):
            raise _unfit(f"{path!r} is no layer in it that could be {stand}")
    for path, norm in surgery.folded.items():
        if surgery.stands.get(path) != "constant" or surgery.stands.get(norm) != "identity":
            raise _unfit(f"the batch norm {norm!r} does not go with {path!r}")


def _check_selection(norm: Any, name: str, index: NDArray[np.int64]) -> None:
    if norm is None or not can_select(norm) or (len(index) and index[-1] >= norm.num_features):
        raise _unfit(f"{name!r} is no batch norm that could select these channels")


def _held(module: nn.Module | None, attribute: str, item: int | None) -> int | None:
    """Return the size that a module holds in an attribute of its own, None if it holds none."""
    value = vars(module).get(attribute) if module is not None else None
    if item is not None:
        value = value[item] if isinstance(value, list | tuple) and item < len(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- the parts of the data -------------------------------------------------------------------------------------


def _odd(wanted: str) -> StoreError:
    return StoreError(f"the description of the pruning must hold {wanted}, but does not")


def _unfit(fact: str) -> StoreError:
    return StoreError(
        f"the file must belong to this model, but {fact}; pass a fresh model of the pruned one's class"
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise _odd("whole numbers from 0 to 2147483647")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _odd("names")
    return value


def _list(data: Json, name: str) -> list[Any]:
    """Return a list that files of earlier versions do not have."""
    value = data.get(name, [])
    if not isinstance(value, list):
        raise _odd(f"a list {name}")
    return value


def _stand(value: Any) -> Stand:
    for known in get_args(Stand):
        if value == known:
            stand: Stand = known
            return stand
    raise _odd("replacements that are empty, identity or constant")


def _rising(values: Any) -> NDArray[np.int64]:
    if not isinstance(values, list):
        raise _odd("lists of indices")
    counts = [_count(value) for value in values]
    if any(a >= b for a, b in pairwise(counts)):
        raise _odd("indices that rise")
    return np.array(counts, np.int64)


def _pick(sets: list[NDArray[np.int64]], number: Any) -> NDArray[np.int64]:
    place = _count(number)
    if place >= len(sets):
        raise _odd("numbers of lists that are there")
    return sets[place]


def _place(entry: list[Any]) -> tuple[str, str, int | None]:
    return _text(entry[0]), _text(entry[1]), None if entry[2] is None else _count(entry[2])


def _mapping(
    entries: list[Any], size: int, key: Callable[[Any], Any], value: Callable[[Any], T]
) -> dict[Any, T]:
    if not all(isinstance(entry, list) and len(entry) == size for entry in entries):
        raise _odd(f"entries of {size} parts")
    found = {key(entry): value(entry) for entry in entries}
    if len(found) != len(entries):
        raise _odd("each entry once")
    return found
