"""Run a model with some channels set to zero wherever an operator reads them.

What reads is found again by counting operators, so the same ones must run as in the trace. A recurrent layer, which
runs others on every device, gets weights with zeros where they would be multiplied with removed channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.graph.groups import Grouping
from slimilar.graph.recorder import is_nothing, name_of
from slimilar.graph.records import Trace
from slimilar.surgery.convolutions import product
from slimilar.surgery.rewrite import Kept, atoms_kept
from slimilar.utils.modules import named_modules
from slimilar.utils.pytree import operands

Place = tuple[
    str, int
]  # a kind of operator and its turn among all calls of that kind; or a layer's path and 0
Masks = Mapping[
    Place, list[tuple[int, int, Tensor]]
]  # which of its tensors, counted from the last, along which axis, which positions

# A linear layer takes one or the other by the strides of its input, and those may be others on the meta device.
_ALIKE = {"aten.addmm": "aten.mm", "aten.baddbmm": "aten.bmm"}


class Masked(TorchDispatchMode):
    """Run a model with some channels set to zero wherever they are read; note which operators run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; without this, torch wraps every call in a guard against it."""
        return False

    def __init__(self, masks: Masks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masks = masks
        self.names: list[str] = []
        self._turns: dict[str, int] = {}
        self._counts = True
        self._weights: list[Any] = []  # of the recurrent layer that runs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = name_of(func)
        if name == "aten.empty" and is_nothing(result := func(*args, **(kwargs or {}))):
            return result
        self.names.append(name)
        if self._counts:
            kind = _ALIKE.get(name, name)
            turn = self._turns.get(kind, 0)
            self._turns[kind] = turn + 1
            if (kind, turn) in self.masks:
                args = self._masked(args, self.masks[kind, turn])
        quick = product(*args) if name == "aten.convolution" else None
        return quick if quick is not None else func(*args, **(kwargs or {}))

    def _masked(self, args: tuple[Any, ...], masks: list[tuple[int, int, Tensor]]) -> tuple[Any, ...]:
        ins = operands(args)
        for which, axis, lost in masks:
            old = ins[which]
            new = old.index_fill(axis, lost.to(old.device), 0)
            args = tuple(new if a is old else a for a in args)
        return args

    @contextmanager
    def inside(self, layers: Mapping[str, nn.RNNBase]) -> Iterator[None]:
        """Mask recurrent layers by their weights, and do not count what runs inside: each device has its own way."""
        hooks: list[Any] = []
        for path, layer in layers.items():
            hooks.append(layer.register_forward_pre_hook(partial(self._enter, path)))
            hooks.append(layer.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, path: str, layer: nn.RNNBase, args: tuple[Any, ...]) -> None:
        self._counts, self._weights = False, layer._flat_weights
        masks = self.masks.get((path, 0), [])
        weights = list(self._weights)
        for which, axis, lost in masks:
            weights[which] = weights[which].index_fill(axis, lost.to(weights[which].device), 0)
        layer._flat_weights = weights
        self._turns[path] = 1

    def _leave(self, layer: nn.RNNBase, *_: Any) -> None:
        self._counts, layer._flat_weights = True, self._weights

    @property
    def complete(self) -> bool:
        """Whether every place at which channels are read has been passed."""
        return all(turn < self._turns.get(kind, 0) for kind, turn in self.masks)


def recurrent(model: nn.Module) -> dict[str, nn.RNNBase]:
    """Return the layers that are one operator where there are numbers, and many without or on other devices."""
    own = {nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward}
    return {
        path: m
        for path, m in named_modules(model).items()
        if isinstance(m, nn.RNNBase) and type(m).forward in own
    }


def masks_of(model: nn.Module, trace: Trace, grouping: Grouping, kept: Kept) -> Masks:
    """Return what has to be set to zero, and where, so that no consumer reads a removed unit."""
    stays = np.append(atoms_kept(grouping, kept), True)  # CONSTANT = -1 finds the last entry
    turns: Counter[str] = Counter()
    layers = recurrent(model)
    places = []
    for op in trace.ops:
        kind = _ALIKE.get(op.name, op.name)
        inside = op.module in layers
        places.append((op.module, 0) if inside else (kind, turns[kind]))
        turns[kind] += not inside
    found: dict[Place, list[tuple[int, int, Tensor]]] = {}
    for read in trace.summing:
        lost, op = np.flatnonzero(~stays[read.atoms]), trace.ops[read.op]
        if len(lost) and op.module not in layers:
            which = op.inputs.index(read.value) - len(op.inputs)
            found.setdefault(places[read.op], []).append((which, read.axis, torch.from_numpy(lost)))
    return found | _masked_weights(layers, trace, stays)


def _masked_weights(
    layers: Mapping[str, nn.RNNBase], trace: Trace, stays: Kept
) -> dict[Place, list[tuple[int, int, Tensor]]]:
    """Return which indices of the weights of recurrent layers are multiplied with removed channels."""
    found: dict[Place, list[tuple[int, int, Tensor]]] = {}
    for path, layer in layers.items():
        read = [r.weight[~stays[r.atoms]] for r in trace.reads if trace.ops[r.op].module == path]
        gone = np.unique(np.concatenate([np.empty(0, np.int64), *read]))
        for axis in trace.axes if len(gone) else ():
            lost = gone[(gone >= axis.first) & (gone < axis.first + axis.size)] - axis.first
            if len(lost):
                which = _weight_number(layer, axis.tensor.removeprefix(f"{path}."))
                found.setdefault((path, 0), []).append((which, axis.axis, torch.from_numpy(lost)))
    return found


def _weight_number(layer: nn.RNNBase, name: str) -> int:
    """Return the number of a weight among those that a layer computes with, also of one that is parametrised."""
    names: list[str] = layer._flat_weights_names
    return next(i for i, own in enumerate(names) if own in name.split("."))
