"""An ONNX graph as a torch module: one submodule for each operator, run in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.deploy.onnx_files.reference import Array

Operand = str | float | None  # the name of a buffer, a number, or None for a tensor that the graph computes


class Layer(nn.Module):
    """One ONNX operator: a function, the tensors and numbers that the file fixes, and sizes as plain integers.

    `sizes` become attributes, so that those that count channels shrink with them. Those that grow with the batch
    have a second number, what to add for every image of it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[Tensor | float | None],
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        per_image: Mapping[str, tuple[int, ...]] | None = None,
        repeated: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.function, self.repeated = function, repeated
        self.operands: tuple[Operand, ...] = tuple(
            f"input_{k}" if isinstance(x, Tensor) else x for k, x in enumerate(operands)
        )
        for k, x in enumerate(operands):
            if isinstance(x, Tensor):
                self.register_buffer(f"input_{k}", x)
        self.size_names = frozenset(sizes or {})
        self.per_image = dict(per_image or {})
        for name, numbers in (sizes or {}).items():
            setattr(self, name, numbers)

    def forward(self, *inputs: Tensor, batch: int) -> Any:
        """Run the operator on what the graph computed; `batch` is the number of images."""
        given = iter(inputs)
        operands = [
            next(given) if x is None else self._held(k, x, batch) for k, x in enumerate(self.operands)
        ]
        return self.function(*operands, **{name: self._sizes(name, batch) for name in self.size_names})

    def _held(self, k: int, operand: str | float, batch: int) -> Tensor | float:
        if not isinstance(operand, str):
            return operand
        tensor: Tensor = getattr(self, operand)
        return tensor.expand(batch, *tensor.shape[1:]) if k in self.repeated else tensor

    def _sizes(self, name: str, batch: int) -> tuple[int, ...]:
        base: tuple[int, ...] = getattr(self, name)
        more = self.per_image.get(name)
        return base if more is None else tuple(n + m * batch for n, m in zip(base, more, strict=True))

    def extra_repr(self) -> str:
        """Return the name of the function and the sizes."""
        name = getattr(self.function, "func", self.function).__name__.strip("_")
        return ", ".join([name, *(f"{n}={getattr(self, n)}" for n in sorted(self.size_names))])


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor of a submodule stands in the file: an input of the operator, maybe transposed."""

    tensor: str  # below the submodule, such as "weight"
    input: int
    transposed: bool = False


@dataclass(frozen=True)
class SizePlace:
    """Where a submodule's list of integers stands in the file: an input or an attribute of the operator."""

    attribute: str
    place: int | str
    original: tuple[int, ...]


@dataclass(frozen=True)
class OnnxStep:
    """One operator of the file: the submodule that computes it, and its values by name."""

    node: int
    layer: str
    inputs: tuple[str, ...]  # those that are computed
    outputs: tuple[str, ...]
    slots: tuple[TensorPlace, ...] = ()
    sizes: tuple[SizePlace, ...] = ()
    free: tuple[str, ...] = ()  # values that nobody needs afterwards


@dataclass(frozen=True)
class OnnxInput:
    """One input of the file, at the size at which it was read."""

    name: str
    shape: tuple[int, ...]  # without the batch
    declared: tuple[int | None, ...]  # as the file has it, batch first; None where it is open


@dataclass(frozen=True, eq=False)
class OnnxSource:
    """What a module read from a file remembers of it. Never copied: nothing in it changes."""

    content: bytes = field(repr=False)  # the file's model, with its external data
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    steps: tuple[OnnxStep, ...] = field(repr=False)
    opset: int
    kinds: tuple[str, ...] = field(repr=False)  # of all operators
    computed_constants: Mapping[str, Array] = field(repr=False)  # those that are not initialisers, by name

    def __deepcopy__(self, memo: object) -> OnnxSource:
        return self


class OnnxModule(nn.Module):
    """A model read from an ONNX file by `slimilar.load_onnx`."""

    def __init__(self, source: OnnxSource, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.source = source
        for name, layer in layers.items():
            self.add_module(name, layer)

    @property
    def example(self) -> Any:
        """An input of the size at which the file was read: a tensor, or a tuple of them."""
        inputs = tuple(torch.zeros(1, *i.shape) for i in self.source.inputs)
        return inputs[0] if len(inputs) == 1 else inputs

    def forward(self, *inputs: Tensor) -> Any:
        """Return the outputs of the file, in its order: a tensor, or a tuple of them."""
        names = [i.name for i in self.source.inputs]
        values: dict[str, Tensor] = dict(zip(names, inputs, strict=True))
        batch = inputs[0].shape[0]
        for step in self.source.steps:
            self._run(step, values, batch)
        found = tuple(values[name] for name in self.source.outputs)
        return found[0] if len(found) == 1 else found

    def _run(self, step: OnnxStep, values: dict[str, Tensor], batch: int) -> None:
        values.update(zip(step.outputs, run(self._modules[step.layer], step, values, batch), strict=False))
        for name in step.free:
            del values[name]


def run(
    layer: nn.Module | None, step: OnnxStep, values: Mapping[str, Tensor], batch: int
) -> tuple[Tensor, ...]:
    """Return what one operator computes."""
    assert layer is not None
    given = [values[name] for name in step.inputs]
    found = layer(*given, batch=batch) if isinstance(layer, Layer) else layer(*given)
    return found if isinstance(found, tuple) else (found,)
