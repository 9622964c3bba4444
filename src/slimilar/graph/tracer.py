"""Carry labels along while a copy of a model runs: the state that the rules of `ops` read and write.

Each ATen operator that runs is looked up in the table of `ops`, whose rule says how the labels of its inputs
(see `labels.py`) become the labels of its outputs. An operator that is not in the table freezes the channels that
reach it, and is named as the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.graph import rules as ops
from slimilar.graph.aliasing import equal, memory, same_channels
from slimilar.graph.labels import CONSTANT, NONE, Atoms, Labels, Ties, atoms_in, on_axis, side_by_side
from slimilar.graph.meta_shapes import shortcut
from slimilar.graph.module_stack import Watch
from slimilar.graph.reasons import MODEL_OUTPUT, Reason, fixed_size
from slimilar.graph.records import (
    Axis,
    Choices,
    Freeze,
    Integer,
    NeedsValues,
    Norm,
    Op,
    Read,
    Signature,
    Trace,
    Value,
    Write,
)
from slimilar.utils.modules import named_modules, named_parameters, named_tensors
from slimilar.utils.pytree import Example, arguments, dissect, map_tensors, tensors_in


def name_of(func: Any) -> str:
    """Return the name of an operator without its overload."""
    return _without_overload(func.name())


@cache
def _without_overload(name: str) -> str:
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
        self.modules = named_modules(model)
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.axes: list[Axis] = []
        self.atom_count = 0
        self.ties, self.sums = Ties(), Ties()
        self._untied: list[tuple[Tensor, Tensor, bool, int, int]] = []  # two factors, sums, operator, freezes
        self._atoms = torch.arange(1 << 12)
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
        self._unsorted: list[Tensor] = []  # tensors whose memory has not been asked for
        self._any_uniform = False
        self._on_cpu: dict[int, tuple[Tensor, Tensor]] = {}
        self._constants: dict[int, Tensor] = {}
        self._inputs: tuple[int, ...] = ()
        self._watch = Watch(self.modules, by_hooks=not meta)

    # --- what the rules use ---------------------------------------------------------------------------------

    def value(self, tensor: Tensor) -> Value:
        """Return what is known about a tensor."""
        return self.values[self.index(tensor)]

    def labels(self, tensor: Tensor | None) -> Labels:
        """Return the labels of a tensor."""
        if tensor is None:
            return NONE
        known = self._known.get(id(tensor))
        return self.values[self.index(tensor) if known is None else known[1]].labels

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        """Tie labels position by position; what meets a constant has to stay."""
        self._untied.append((a, b, sums, len(self.ops), len(self.freezes)))

    def _sort_ties(self) -> None:
        """Look at what was tied since this was last asked, all at once."""
        found = [side_by_side(a, b) for a, b, *_ in self._untied]
        if found:
            constant = np.concatenate([x for x, _ in found]) == CONSTANT
            fixed = constant != (np.concatenate([y for _, y in found]) == CONSTANT)
            if fixed.any():
                self._freeze_at_constants(found)
        for (x, y), (_, _, sums, _, _) in zip(found, self._untied, strict=True):
            (self.sums if sums else self.ties).add(x, y)
        self._untied.clear()

    def _freeze_at_constants(self, found: list[tuple[Atoms, Atoms]]) -> None:
        for (x, y), (_, _, _, op, place) in reversed(list(zip(found, self._untied, strict=True))):
            fixed = (x == CONSTANT) != (y == CONSTANT)
            if fixed.any():  # in its place among the freezes, because of several reasons the first counts
                self.freezes.insert(
                    place,
                    Freeze(np.unique(np.maximum(x, y)[fixed]), fixed_size("meets constant padding"), op),
                )

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

    def freeze(self, labels: Labels, why: Reason) -> None:
        """Keep these channels, and note why."""
        if labels and len(atoms := atoms_in(labels)):
            self.freezes.append(Freeze(atoms, why, len(self.ops)))

    def frozen_so_far(self) -> list[Freeze]:
        """Return what is known to stay at this point of the forward pass."""
        self._sort_ties()
        return self.freezes

    def cut(self, factor: Tensor, axis: int, places: Iterable[int]) -> None:
        """Note where the code cuts an axis: only if a channel of each part leaves does probing show what it means."""
        size = factor.shape[axis]
        edges = sorted({0, size, *(min(p, size) for p in places)})
        for start, end in pairwise(edges if size > 1 else []):
            atoms = factor.narrow(axis, start, end - start).numpy().reshape(-1)
            self.runs.append(atoms[atoms >= 0])

    def piece(self, factor: Tensor) -> None:
        """Note channels that become a tensor of their own."""
        atoms = factor.numpy().reshape(-1)
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
        known = self._known.get(id(tensor))
        return self._meet(tensor) if known is None else known[1]

    def _meet(self, tensor: Tensor) -> int:
        """Enter a tensor that no operator has made: a parameter, a buffer, or a constant."""
        name, shape = self._names.get(id(tensor)), tuple(tensor.shape)
        labels = self._label_axes(name, shape) if name is not None else NONE
        number = self._store(tensor, Value(shape, labels, name, False, False))
        if name is None:
            self._constants[number] = self._on_cpu.get(id(tensor), (tensor, tensor))[1].detach()
        return number

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
        outputs = self.forward(example)
        self.freeze(tuple(f for i in outputs for f in self.values[i].labels), MODEL_OUTPUT)
        self._keep_rigid()
        return self._trace(outputs)

    def forward(self, example: Example) -> tuple[int, ...]:
        """Call the model on its example input; return the values that come out."""
        args, kwargs = arguments(example)
        if self.meta:
            args, kwargs = map_tensors(lambda t: torch.empty_like(t, device="meta"), (args, kwargs))
        self._inputs = tuple(
            self._store(tensor, Value(tuple(tensor.shape), NONE, None, True, False))
            for tensor in tensors_in((args, kwargs))
        )
        with self._watch.running(self._leave), torch.no_grad(), self:
            result = self.model(*args, **kwargs)
        return tuple(self.index(t) for t in tensors_in(result))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ins, given = dissect((*args, *kwargs.values()) if kwargs else args)
        if self.meta and False in [t.is_meta for t in ins]:
            args, kwargs = map_tensors(self._to_meta, (args, kwargs))
            ins = [self._to_meta(t) for t in ins]
        name = name_of(func)
        module, place, turn = self._watch.here(name)
        signature = (name, place, turn)
        known = self._known
        before = [known[id(t)][1] if id(t) in known else self._meet(t) for t in ins]
        seen = [self.values[i] for i in before]
        quick = shortcut(name, args, kwargs) if self.meta else None
        result = quick(*args) if quick else func(*args, **kwargs)
        call = ops.Call(func, name, args, kwargs, result, module, signature, ins, seen)
        self._note(call, before, given)
        if signature in self.choices.mend:
            for found in ops.held_integers(self, call):
                self.hold(Integer(*found))
        return result

    def _note(self, call: ops.Call, inputs: list[int], given: list[Any]) -> None:
        """Find the labels of every output of a call, and record it."""
        self._record(call, inputs, given, ops.apply(self, call))

    def _record(self, call: ops.Call, inputs: list[int], given: list[Any], labels: list[Labels]) -> None:
        seen = call.seen
        dynamic = True in [v.dynamic for v in seen]
        uniform = ops.is_uniform(call)
        self._any_uniform = self._any_uniform or (uniform and any(out.numel() for out in call.outs))
        if call.overwrites and seen:
            self._overwrite(call, seen[0].labels, labels[0])
        outputs = tuple(
            [
                self._store(out, Value(tuple(out.shape), self._settle(found), None, dynamic, uniform))
                for out, found in zip(call.outs, labels, strict=True)
            ]
        )
        self.ops.append(
            Op(
                call.name,
                call.module,
                call.signature,
                call.func,
                given,
                tuple(call.kwargs),
                tuple(inputs),
                outputs,
            )
        )

    def _overwrite(self, call: ops.Call, old: Labels, new: Labels) -> None:
        """See to the tensors that share memory with one that is written to."""
        target = call.outs[0]
        if old is new and not self._any_uniform:
            return
        others = [x for x in self._in_memory_of(target) if x is not target]
        for x in others:
            if self.value(x).uniform:
                self._alter(x, self.value(x).labels)
        if not others or equal(old, new):
            return
        fresh = not old and not any(self.value(x).labels for x in others)
        if fresh and all(same_channels(target, x, new) for x in others):
            for x in others:
                self._alter(x, new)
        elif not all(equal(self.value(x).labels, new) and same_channels(target, x, new) for x in others):
            self.freeze(old + new, fixed_size(f"operator {call.name} writes into a part of a tensor"))

    def _alter(self, tensor: Tensor, labels: Labels) -> None:
        """Give a tensor that was written to other labels; it is no one number any more."""
        old = self.value(tensor)
        self.values[self.index(tensor)] = Value(old.shape, labels, old.name, old.dynamic, False)

    def _settle(self, labels: Labels) -> Labels:
        """Drop factors that do not vary: a tensor that is one channel throughout cannot lose it."""
        single = [f for f in labels if f.numel() == 1]
        if not single:
            return labels
        for factor in single:
            self.freeze((factor,), fixed_size("a single channel is taken out"))
        return tuple(f for f in labels if f.numel() > 1)

    def _store(self, tensor: Tensor, value: Value) -> int:
        number = len(self.values)
        self.values.append(value)
        if id(tensor) not in self._known:
            self._unsorted.append(tensor)
        self._known[id(tensor)] = (tensor, number)
        return number

    def _in_memory_of(self, target: Tensor) -> list[Tensor]:
        """Return the tensors seen so far that lie in the memory of one; they are sorted when this is asked."""
        for tensor in self._unsorted:
            self._sharing.setdefault(memory(tensor), []).append(tensor)
        self._unsorted.clear()
        return self._sharing.get(memory(target), [])

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
                first = self.atom_count
                self.axes.append(Axis(name, axis, size, first))
                self.atom_count += size
                if self.atom_count > len(self._atoms):
                    self._atoms = torch.arange(2 * self.atom_count)
                vector = self._atoms.narrow(0, first, size)
                labels.append(vector if len(shape) == 1 else on_axis(vector, axis, len(shape)))
        return tuple(labels)

    def _leave(self, path: str, module: nn.Module, result: Any) -> None:
        if ops.is_frozen_norm(module) and isinstance(result, Tensor):
            ops.note_frozen_norm(self, path, module, result)

    def _keep_rigid(self) -> None:
        for write in self.writes:
            if self.ops[write.op].module in self.choices.rigid:
                self.freeze((torch.from_numpy(write.atoms),), fixed_size("the code works at this width only"))

    def _trace(self, outputs: tuple[int, ...]) -> Trace:
        self._sort_ties()
        parameters = {name: tuple(p.shape) for name, p in named_parameters(self.model).items()}
        return Trace(
            tuple(self.values), tuple(self.ops), tuple(self.axes), self.atom_count, self.ties.pairs(),
            self.sums.pairs(), tuple(self.writes), tuple(self.reads), tuple(self.norms), tuple(self.integers),
            tuple(self.freezes), tuple(self.runs), tuple(self.pieces), self._inputs, outputs, self._constants,
            parameters, self.meta,
        )  # fmt: skip
