"""Run a model once, without data, and follow every channel through it.

The model is copied onto the `meta` device (shapes only, no memory, no compute) and called under a dispatch mode.
Each ATen operator that runs is looked up in the table of `ops.py`, whose rule says how the labels of its inputs
(see `labels.py`) become the labels of its outputs. An operator that is not in the table freezes the channels that
reach it, and is named as the reason. Where a model looks at values (`.item()`, an index computed on the way), the
trace is run again on real tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar import ops, unseen
from slimilar.copies import check_model, copy_with, named_tensors, on_meta, shadow, unwrap
from slimilar.errors import InvalidInput, TraceError
from slimilar.labels import CONSTANT, NONE, Atoms, Labels, Ties, atoms_in, side_by_side
from slimilar.memory import equal, memory, same_channels
from slimilar.records import (
    Axis,
    Choices,
    Freeze,
    Integer,
    NeedsValues,
    Norm,
    Op,
    Read,
    Ref,
    Signature,
    Trace,
    Value,
    Write,
)
from slimilar.shapes import shortcut
from slimilar.trees import Example, arguments, map_operands, map_tensors, operands, tensors_in


@cache
def name_of(func: Any) -> str:
    """Return the name of an operator without its overload."""
    name: str = func.name()
    return name.split(".")[0].replace("::", ".")


class Tracer(TorchDispatchMode):
    """Carry labels along while a copy of the model runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; without this, torch wraps every call in a guard against it."""
        return False

    def __init__(self, model: nn.Module, choices: Choices, meta: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.choices, self.meta = choices, meta
        self.model = model
        self.modules = dict(model.named_modules())
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.axes: list[Axis] = []
        self.atom_count = 0
        self.ties, self.sums = Ties(), Ties()
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.norms: list[Norm] = []
        self.integers: list[Integer] = []
        self.freezes: list[Freeze] = []
        self.runs: list[Atoms] = []
        self.pieces: list[Atoms] = []
        self._names = {id(t): name for name, t in named_tensors(model).items()}
        self._known: dict[int, tuple[Tensor, int]] = {}  # id -> the tensor, kept alive, and its value
        self._sharing: dict[int, list[Tensor]] = {}  # memory -> the tensors that lie in it
        self._on_cpu: dict[int, tuple[Tensor, Tensor]] = {}
        self._places = {path: _place(path, self.modules) for path in self.modules}
        self._stack: list[str] = [""]
        self._turns: list[Counter[str]] = [Counter()]
        self._hooks: list[Any] = []

    # --- what the rules use ---------------------------------------------------------------------------------

    def value(self, tensor: Tensor) -> Value:
        """Return what is known about a tensor."""
        return self.values[self.index(tensor)]

    def labels(self, tensor: Tensor | None) -> Labels:
        """Return the labels of a tensor."""
        return NONE if tensor is None else self.value(tensor).labels

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        """Tie labels position by position; what meets a constant has to stay."""
        x, y = side_by_side(a, b)
        if x.min(initial=0) == CONSTANT or y.min(initial=0) == CONSTANT:
            fixed = (x == CONSTANT) != (y == CONSTANT)
            self.freeze((torch.from_numpy(np.maximum(x, y)[fixed]),), "meets constant padding")
        (self.sums if sums else self.ties).add(x, y)

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Tie labels that do not meet, because the code is assumed to treat them alike."""
        self.tie(a, b)

    def hold(self, number: Integer) -> None:
        """Note a number that shrinks with channels; what shares it shrinks alike."""
        for other in self.integers:
            if (other.module, other.attribute, other.item) == (number.module, number.attribute, number.item):
                self.bind(torch.from_numpy(other.atoms), torch.from_numpy(number.atoms))
                return
        self.integers.append(number)

    def original_groups(self, call: ops.Call) -> tuple[int, int]:
        """Return the number of groups and of input channels that a convolution has at the original widths."""
        return int(call["groups"]), int(call["input"].shape[1])

    def freeze(self, labels: Labels, reason: str) -> None:
        """Keep these channels, for a reason in words."""
        atoms = atoms_in(labels)
        if len(atoms):
            self.freezes.append(Freeze(atoms, reason, len(self.ops)))

    def frozen_so_far(self) -> list[Freeze]:
        """Return what is known to stay at this point of the forward pass."""
        return self.freezes

    def cut(self, factor: Tensor, axis: int, places: Iterable[int]) -> None:
        """Note where the code cuts an axis: only if a channel of each part leaves does probing show what it means."""
        size = factor.shape[axis]
        edges = sorted({0, size, *(min(p, size) for p in places)})
        for start, end in pairwise(edges if size > 1 else []):
            atoms = factor.narrow(axis, start, end - start).reshape(-1).numpy()
            self.runs.append(atoms[atoms >= 0])

    def piece(self, factor: Tensor) -> None:
        """Note channels that become a tensor of their own."""
        atoms = factor.reshape(-1).numpy()
        self.pieces.append(atoms[atoms >= 0])

    def is_frozen(self, factor: Tensor) -> bool:
        """Tell whether all channels of a factor are known to stay."""
        atoms = atoms_in((factor,))
        kept = [f.atoms for f in self.frozen_so_far()]
        return bool(kept) and bool(np.isin(atoms, np.concatenate(kept)).all())

    def level(self, signature: Signature, default: int = 0) -> int:
        """Return how far the assumption behind an operator has been given up."""
        return self.choices.levels.get(signature, default)

    def index(self, tensor: Tensor) -> int:
        """Return the number of the value that a tensor is."""
        if id(tensor) in self._known:
            return self._known[id(tensor)][1]
        name = self._names.get(id(tensor))
        labels = self._label_axes(name, tuple(tensor.shape)) if name is not None else NONE
        return self._store(tensor, Value(tuple(tensor.shape), labels, name, False, False))

    def constants(self, tensor: Tensor) -> Tensor:
        """Return the numbers of an index tensor, which must not depend on the model's input."""
        if tensor.device.type == "meta":
            if id(tensor) in self._on_cpu:
                return self._on_cpu[id(tensor)][1]
            raise NeedsValues("an index")
        return tensor.detach().cpu()

    # --- the forward pass -----------------------------------------------------------------------------------

    def run(self, example: Example) -> Trace:
        """Call the model on its example input and return what was seen."""
        args, kwargs = arguments(example)
        if self.meta:
            args, kwargs = map_tensors(lambda t: torch.empty_like(t, device="meta"), (args, kwargs))
        for tensor in tensors_in((args, kwargs)):
            self._store(tensor, Value(tuple(tensor.shape), NONE, None, True, False))
        self._watch_modules()
        try:
            with torch.no_grad(), self:
                result = self.model(*args, **kwargs)
        finally:
            for hook in self._hooks:
                hook.remove()
        outputs = tuple(self.index(t) for t in tensors_in(result))
        self.freeze(tuple(f for i in outputs for f in self.values[i].labels), "model output")
        self._keep_rigid()
        return self._trace(outputs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ins = operands((*args, *kwargs.values()))
        if self.meta and not all(t.is_meta for t in ins):
            args, kwargs = map_tensors(self._to_meta, (args, kwargs))
            ins = operands((*args, *kwargs.values()))
        name = name_of(func)
        turn = self._turns[-1][name]
        self._turns[-1][name] += 1
        module = self._stack[-1]
        signature = (name, self._places[module], turn)
        before = [self.index(t) for t in ins]
        quick = shortcut(name, args, kwargs) if self.meta else None
        result = quick(*args) if quick else func(*args, **kwargs)
        call = ops.Call(func, name, args, kwargs, result, module, signature)
        self._record(call, before, self._labels_after(call, before))
        if signature in self.choices.mend:
            for found in ops.held_integers(self, call):
                self.hold(Integer(*found))
        return result

    def _labels_after(self, call: ops.Call, inputs: list[int]) -> list[Labels]:
        """Return the labels of every output of a call."""
        return ops.apply(self, call)

    def _record(self, call: ops.Call, inputs: list[int], labels: list[Labels]) -> None:
        seen = [self.values[i] for i in inputs]
        dynamic = any(v.dynamic for v in seen)
        uniform = ops.is_uniform(call, seen)
        refs = map_operands(lambda t: Ref(self.index(t)), call.bound)
        if call.overwrites and seen:
            self._overwrite(call, seen[0].labels, labels[0])
        outputs = tuple(
            self._store(out, Value(tuple(out.shape), self._settle(found), None, dynamic, uniform))
            for out, found in zip(call.outs, labels, strict=True)
        )
        self.ops.append(Op(call.name, call.module, call.signature, refs, tuple(inputs), outputs))

    def _overwrite(self, call: ops.Call, old: Labels, new: Labels) -> None:
        """See to the tensors that share memory with one that is written to."""
        target = call.outs[0]
        others = [x for x in self._sharing.get(memory(target), []) if x is not target]
        for x in others:
            if self.value(x).uniform:
                self.values[self.index(x)] = replace(self.value(x), uniform=False)
        if not others or equal(old, new):
            return
        fresh = not old and not any(self.value(x).labels for x in others)
        if fresh and all(same_channels(target, x, new) for x in others):
            for x in others:
                self.values[self.index(x)] = replace(self.value(x), labels=new)
        elif not all(equal(self.value(x).labels, new) and same_channels(target, x, new) for x in others):
            self.freeze(old + new, f"operator {call.name} writes into a part of a tensor")

    def _settle(self, labels: Labels) -> Labels:
        """Drop factors that do not vary: a tensor that is one channel throughout cannot lose it."""
        for factor in labels:
            if factor.numel() == 1:
                self.freeze((factor,), "a single channel is taken out")
        return tuple(f for f in labels if f.numel() > 1)

    def _store(self, tensor: Tensor, value: Value) -> int:
        number = len(self.values)
        self.values.append(value)
        if id(tensor) not in self._known:
            self._sharing.setdefault(memory(tensor), []).append(tensor)
        self._known[id(tensor)] = (tensor, number)
        return number

    def _to_meta(self, tensor: Tensor) -> Tensor:
        """Move constants that the code makes on the CPU to where the trace runs; their numbers are remembered."""
        if tensor.device.type == "meta":
            return tensor
        if id(tensor) not in self._on_cpu:
            moved = torch.empty_like(tensor, device="meta")
            self._on_cpu[id(tensor)] = (tensor, moved)
            self._on_cpu[id(moved)] = (moved, tensor)
            if id(tensor) in self._names:
                self._names[id(moved)] = self._names[id(tensor)]
        return self._on_cpu[id(tensor)][1]

    def _label_axes(self, name: str, shape: tuple[int, ...]) -> Labels:
        labels = []
        for axis, size in enumerate(shape):
            if size > 1:
                self.axes.append(Axis(name, axis, size, self.atom_count))
                atoms = np.arange(self.atom_count, self.atom_count + size)
                labels.append(
                    torch.from_numpy(atoms.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
                )
                self.atom_count += size
        return tuple(labels)

    def _watch_modules(self) -> None:
        """Keep the path of the module that is running."""

        def enter(path: str) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                self._stack.append(path)
                self._turns.append(Counter())

            return hook

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            path = self._stack.pop()
            self._turns.pop()
            if ops.is_frozen_norm(module) and isinstance(result, Tensor):
                ops.note_frozen_norm(self, path, module, result)

        for path, module in self.modules.items():
            if path:
                self._hooks.append(module.register_forward_pre_hook(enter(path), prepend=True))
                self._hooks.append(module.register_forward_hook(leave, always_call=True))

    def _keep_rigid(self) -> None:
        for write in self.writes:
            if self.ops[write.op].module in self.choices.rigid:
                self.freeze((torch.from_numpy(write.atoms),), "the code works at this width only")

    def _trace(self, outputs: tuple[int, ...]) -> Trace:
        parameters = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        return Trace(
            tuple(self.values), tuple(self.ops), tuple(self.axes), self.atom_count, self.ties.pairs(),
            self.sums.pairs(), tuple(self.writes), tuple(self.reads), tuple(self.norms), tuple(self.integers),
            tuple(self.freezes), tuple(self.runs), tuple(self.pieces), outputs, parameters, self.meta,
        )  # fmt: skip


def _place(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Return where in the code a module runs: the classes around it and its name, the same for repeated blocks.

    A class of the user's runs the same code under whatever number it stands in a list; one of torch's runs for
    the list that it stands in.
    """
    parts = path.split(".") if path else []
    around = [
        type(modules[".".join(parts[:i])]).__name__ for i in range(max(0, len(parts) - 2), len(parts) + 1)
    ]
    own = parts[-1:]
    if own and own[0].isdigit() and not type(modules[path]).__module__.startswith("torch.nn"):
        own = []
    return ".".join([*around, *own])


def trace(model: nn.Module, example: Example, choices: Choices | None = None) -> Trace:
    """Follow every channel of a model through one forward pass. The model is not touched.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> [op.name for op in trace(net, torch.zeros(1, 3, 8, 8)).ops if "empty" not in op.name]
    ['aten.convolution', 'aten.native_batch_norm', 'aten.relu', 'aten.convolution']
    """
    choices = choices or Choices()
    try:
        small = on_meta(model)
        return _with_training(small, example, choices, Tracer(small, choices, meta=True).run(example))
    except InvalidInput:
        raise
    except Exception as shapes_only:
        if any(t.is_meta for t in model.parameters()):
            raise TraceError(_rejected(example, shapes_only)) from shapes_only
        return _trace_on_values(model, example, choices)


def _with_training(model: nn.Module, example: Example, choices: Choices, seen: Trace) -> Trace:
    """Add what is known about parts that only run in training; where they cannot be run, they are left alone."""
    if not unseen.wake(model, seen):
        return seen
    try:
        return unseen.merge(seen, Tracer(model, choices, meta=True).run(example))
    except Exception:
        return seen


def _trace_on_values(model: nn.Module, example: Example, choices: Choices) -> Trace:
    try:
        return Tracer(shadow(model), choices, meta=False).run(example)
    except InvalidInput:
        raise
    except Exception as error:
        raise TraceError(_rejected(example, error)) from error


def _rejected(example: Example, error: Exception) -> str:
    args, kwargs = arguments(example)
    shapes = [tuple(t.shape) for t in tensors_in((args, kwargs))]
    given = f"shapes {shapes}" if shapes else "no tensor"
    lines = str(error).strip().splitlines()
    return (
        f"the model must run on its example input, but on {given} its forward raised "
        f"{type(error).__name__}: {lines[0] if lines else ''} "
        "(pass an example of the shape that the model takes)"
    )


__all__ = [
    "Axis", "Choices", "Example", "Freeze", "Integer", "Norm", "Op", "Read", "Ref", "Trace", "Value",
    "Write", "arguments", "check_model", "copy_with", "map_tensors", "name_of", "named_tensors", "on_meta",
    "tensors_in", "trace", "unwrap",
]  # fmt: skip
