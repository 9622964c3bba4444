"""Run a model once, without data, and follow every channel through it.

The model is copied onto the `meta` device (shapes only, no memory, no compute) and called under a dispatch mode.
Each ATen operator that runs is looked up in the table of `ops.py`, whose rule says how the labels of its inputs
(see `labels.py`) become the labels of its outputs. An operator that is not in the table freezes the channels that
reach it, and is named as the reason. Where a model looks at values (`.item()`, an index computed on the way), the
trace is run again on real tensors.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar import ops
from slimilar.errors import InvalidInput, TraceError
from slimilar.labels import CONSTANT, NONE, Atoms, Labels, Ties, atoms_in

Example = Any  # a tensor, a tuple of positional arguments, or a dict of keyword arguments
Signature = tuple[str, str, int]  # operator, place in the code (alike in repeated blocks), turn at that place


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor of the forward pass."""

    shape: tuple[int, ...]
    labels: Labels
    name: str | None  # the parameter or buffer that it is, if it is one
    dynamic: bool  # depends on the model's input
    uniform: bool  # one number everywhere, such as torch.zeros(...)


@dataclass(frozen=True, eq=False)
class Op:
    """One operator of the forward pass; its inputs and outputs are indices into `Trace.values`."""

    name: str
    module: str
    signature: Signature
    arguments: Mapping[str, Any]  # tensors stand here as the indices of their values, wrapped in `Ref`
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


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
class Freeze:
    """Channels that have to stay, and why."""

    atoms: Atoms
    reason: str
    op: int


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything one forward pass tells about the channels of a model. Plain data."""

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
    outputs: tuple[int, ...]
    parameters: Mapping[str, tuple[int, ...]]  # name -> shape, tied ones once
    meta: bool  # shapes were enough


@dataclass(frozen=True)
class Choices:
    """What the trace assumes about the user's code where one forward pass cannot tell; see `probe.py`."""

    levels: Mapping[Signature, int] = field(default_factory=dict)  # how far an assumption has been given up
    mend: frozenset[Signature] = frozenset()  # operators whose module holds a number that has to shrink with them
    stiff: frozenset[Signature] = frozenset()  # operators that only work at the original widths
    select: frozenset[str] = frozenset()  # batch norms that choose their own part of the stream


class NeedsValues(Exception):
    """Shapes alone do not tell where the channels go."""


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_model(model: object) -> nn.Module:
    """Refuse what is not a module whose code can run again with other widths."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise InvalidInput(
            "model must be ordinary Python modules, got TorchScript, which is frozen: "
            "pass the module that was given to torch.jit.script or torch.jit.trace"
        )
    return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_with(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a deep copy of a model that holds the given tensors instead of its own; nothing else is shared.

    Names that are not given keep a copy of their tensor. Tied tensors stay tied.
    """
    memo: dict[int, Any] = {}
    for name, old in named_tensors(model).items():
        if name in tensors:
            new = tensors[name]
            if isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
            memo[id(old)] = new
    return copy.deepcopy(model, memo)


def on_meta(model: nn.Module, shapes: Mapping[str, tuple[int, ...]] | None = None) -> nn.Module:
    """Return a copy in eval mode whose tensors have a shape but no memory; its hooks come along."""
    shapes = shapes or {}
    empty = {
        name: torch.empty(shapes.get(name, tuple(t.shape)), dtype=t.dtype, device="meta")
        for name, t in named_tensors(model).items()
    }
    return copy_with(model, empty).eval()


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
        return type(tree)(map_tensors(function, x) for x in tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, x) for key, x in tree.items()}
    return tree


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples, dicts and dataclass-like outputs."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list | set):
        for x in tree:
            yield from tensors_in(x)
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from tensors_in(x)
    elif hasattr(tree, "__dict__") and not isinstance(tree, nn.Module | type):
        for x in vars(tree).values():
            yield from tensors_in(x)


class Tracer(TorchDispatchMode):
    """Carry labels along while a copy of the model runs."""

    def __init__(self, model: nn.Module, choices: Choices, meta: bool) -> None:
        super().__init__()
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
        self._names = {id(t): name for name, t in named_tensors(model).items()}
        self._known: dict[int, tuple[Tensor, int]] = {}  # id -> the tensor, kept alive, and its value
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
        a, b = torch.broadcast_tensors(a, b)
        fixed = (a == CONSTANT) != (b == CONSTANT)
        if bool(fixed.any()):
            self.freeze((torch.maximum(a, b)[fixed],), "meets constant padding")
        both = (a >= 0) & (b >= 0) & (a != b)
        if bool(both.any()):
            (self.sums if sums else self.ties).add(a[both], b[both])

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Tie labels that do not meet, because the code is assumed to treat them alike."""
        self.tie(a, b)

    def original_groups(self, call: ops.Call) -> tuple[int, int]:
        """Return the number of groups and of input channels that a convolution has at the original widths."""
        return int(call["groups"]), int(call["input"].shape[1])

    def freeze(self, labels: Labels, reason: str) -> None:
        """Keep these channels, for a reason in words."""
        atoms = atoms_in(labels)
        if len(atoms):
            self.freezes.append(Freeze(atoms, reason, len(self.ops)))

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
        return self._trace(outputs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.meta:
            args, kwargs = map_tensors(self._to_meta, (args, kwargs))
        name = func.name().split(".")[0].replace("::", ".")
        turn = self._turns[-1][name]
        self._turns[-1][name] += 1
        module = self._stack[-1]
        signature = (name, self._places[module], turn)
        before = [self.index(t) for t in tensors_in((args, kwargs))]
        result = func(*args, **kwargs)
        call = ops.Call(func, name, args, kwargs, result, module, signature)
        self._record(call, before, ops.apply(self, call))
        if signature in self.choices.mend:
            self.integers.extend(Integer(*found) for found in ops.held_integers(self, call))
        return result

    def _record(self, call: ops.Call, inputs: list[int], labels: list[Labels]) -> None:
        seen = [self.values[i] for i in inputs]
        dynamic = any(v.dynamic for v in seen)
        uniform = ops.is_uniform(call, seen)
        refs = map_tensors(lambda t: Ref(self.index(t)), call.bound())
        outs = list(tensors_in(call.result))
        outputs = tuple(
            self._store(out, Value(tuple(out.shape), self._settle(found), None, dynamic, uniform))
            for out, found in zip(outs, labels, strict=True)
        )
        self.ops.append(Op(call.name, call.module, call.signature, refs, tuple(inputs), outputs))

    def _settle(self, labels: Labels) -> Labels:
        """Drop factors that do not vary: a tensor that is one channel throughout cannot lose it."""
        for factor in labels:
            if factor.numel() == 1:
                self.freeze((factor,), "a single channel is taken out")
        return tuple(f for f in labels if f.numel() > 1)

    def _store(self, tensor: Tensor, value: Value) -> int:
        self.values.append(value)
        self._known[id(tensor)] = (tensor, len(self.values) - 1)
        return len(self.values) - 1

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
                atoms = torch.arange(self.atom_count, self.atom_count + size)
                labels.append(atoms.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
                self.atom_count += size
        return tuple(labels)

    def _watch_modules(self) -> None:
        """Keep the path of the module that is running."""

        def enter(path: str) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                self._stack.append(path)
                self._turns.append(Counter())

            return hook

        def leave(*_: Any) -> None:
            self._stack.pop()
            self._turns.pop()

        for path, module in self.modules.items():
            if path:
                self._hooks.append(module.register_forward_pre_hook(enter(path), prepend=True))
                self._hooks.append(module.register_forward_hook(leave, always_call=True))

    def _trace(self, outputs: tuple[int, ...]) -> Trace:
        parameters = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        return Trace(
            tuple(self.values), tuple(self.ops), tuple(self.axes), self.atom_count, self.ties.pairs(),
            self.sums.pairs(), tuple(self.writes), tuple(self.reads), tuple(self.norms), tuple(self.integers),
            tuple(self.freezes), outputs, parameters, self.meta,
        )  # fmt: skip


def _place(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Return where in the code a module runs: the classes around it and its name, the same for repeated blocks."""
    parts = path.split(".") if path else []
    around = [type(modules[".".join(parts[:i])]).__name__ for i in range(max(0, len(parts) - 2), len(parts) + 1)]
    return ".".join([*around, *parts[-1:]])


def trace(model: nn.Module, example: Example, choices: Choices | None = None) -> Trace:
    """Follow every channel of a model through one forward pass. The model is not touched.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> [op.name for op in trace(net, torch.zeros(1, 3, 8, 8)).ops if "empty" not in op.name]
    ['aten.convolution', 'aten.native_batch_norm', 'aten.relu', 'aten.convolution']
    """
    choices = choices or Choices()
    try:
        return Tracer(on_meta(model), choices, meta=True).run(example)
    except InvalidInput:
        raise
    except Exception as shapes_only:
        if any(t.is_meta for t in model.parameters()):
            raise TraceError(_rejected(example, shapes_only)) from shapes_only
        return _trace_on_values(model, example, choices)


def _trace_on_values(model: nn.Module, example: Example, choices: Choices) -> Trace:
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    shared = {name: nn.Parameter(p.detach(), p.requires_grad) for name, p in model.named_parameters()}
    try:
        return Tracer(copy_with(model, {**shared, **buffers}).eval(), choices, meta=False).run(example)
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


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)


__all__ = [
    "Axis", "Choices", "Example", "Freeze", "Integer", "Norm", "Op", "Read", "Ref", "Trace", "Value",
    "Write", "arguments", "check_model", "copy_with", "elements", "map_tensors", "named_tensors", "on_meta",
    "tensors_in", "trace", "unwrap",
]  # fmt: skip
