"""The tensors of a forward pass, numbered as they are met, and what is known about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from slimilar.graph.aliasing import SharedMemory
from slimilar.graph.labels import NONE, Labels
from slimilar.graph.records import Value

Enter = Callable[[str, tuple[int, ...]], Labels]  # name and shape of a parameter or buffer -> its labels


class Values:
    """What is known about every tensor that a forward pass has met."""

    def __init__(self, names: Mapping[int, str], enter: Enter) -> None:
        self.known: list[Value] = []
        self.memory = SharedMemory()
        self.any_uniform = False  # whether a tensor of one number everywhere has been met
        self.constants: dict[int, Tensor] = {}  # those that no operator has made and that have no name
        self._names, self._enter = dict(names), enter  # id -> parameter or buffer
        self._numbers: dict[int, tuple[Tensor, int]] = {}  # id -> the tensor, kept alive, and its number

    def index(self, tensor: Tensor) -> int:
        """Return the number of a tensor; one that no operator has made is a parameter, a buffer or a constant."""
        known = self._numbers.get(id(tensor))
        return self._meet(tensor) if known is None else known[1]

    def of(self, tensor: Tensor) -> Value:
        """Return what is known about a tensor."""
        return self.known[self.index(tensor)]

    def labels(self, tensor: Tensor | None) -> Labels:
        """Return the labels of a tensor."""
        if tensor is None:
            return NONE
        known = self._numbers.get(id(tensor))
        return self.known[self._meet(tensor) if known is None else known[1]].labels

    def store(self, tensor: Tensor, value: Value) -> int:
        """Enter a tensor, or what it has become, under a new number."""
        number = len(self.known)
        self.known.append(value)
        if id(tensor) not in self._numbers:
            self.memory.add(tensor)
        self._numbers[id(tensor)] = (tensor, number)
        return number

    def relabel(self, tensor: Tensor, labels: Labels) -> None:
        """Give a tensor that was written to other labels; it is not one number any more."""
        old = self.of(tensor)
        self.known[self.index(tensor)] = Value(old.shape, labels, old.name, old.dynamic, False)

    def rename(self, tensor: Tensor, copy: Tensor) -> None:
        """Let a copy be the parameter or buffer that a tensor is, or the one number that it is known to be."""
        if id(tensor) in self._names:
            self._names[id(copy)] = self._names[id(tensor)]
        known = self._numbers.get(id(tensor))
        if known is not None and self.known[known[1]].uniform and id(copy) not in self._numbers:
            self.memory.add(copy)
            self._numbers[id(copy)] = (copy, known[1])

    def _meet(self, tensor: Tensor) -> int:
        name, shape = self._names.get(id(tensor)), tuple(tensor.shape)
        labels = NONE if name is None else self._enter(name, shape)
        number = self.store(tensor, Value(shape, labels, name, False, False))
        if name is None:
            self.constants[number] = tensor
        return number
