"""Channel selections in an exported ONNX graph: a slice where one will do, none at all where that is cheaper.

A batch norm that reads a part of a residual stream is exported as a Gather in front of it. ONNX Runtime leaves its
blocked format for a Gather, so the copy costs about as much as 24 multiply-adds for each of its values. Where the
convolution behind it is small, it is cheaper to let that read all channels, those not selected with weights of zero.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimilar.deploy.extras import require

Ints = NDArray[np.int64]

COPY = 24.0  # multiply-adds that take as long as copying one value: break-even lies between 16 and 48 (docs/export.md)
CHANNELS = 1  # the axis
SLICE_OPSET = 10  # since then the bounds of a Slice are inputs
_PER_VALUE = {"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"}


def as_slice(index: Ints) -> tuple[int, int, int] | None:
    """Return start, end and step of the slice that selects what an index does; None if there is none.

    >>> as_slice(np.array([3, 4, 5])), as_slice(np.array([0, 2, 4])), as_slice(np.array([0, 1, 3]))
    ((3, 6, 1), (0, 5, 2), None)
    """
    steps = set(np.diff(index).tolist()) or {1}
    step = steps.pop()
    if steps or step < 1 or not len(index) or index[0] < 0:
        return None
    return int(index[0]), int(index[-1]) + 1, step


def simplify_selections(model: Any) -> int:
    """Absorb or slice the channel selections of an ONNX model, in place; return how many there were."""
    graph = _Selections(model)
    found = [node for node in model.graph.node if graph.index_of(node) is not None]
    for node in found:
        if not graph.absorb(node):
            graph.slice(node)
    graph.drop_unused()
    return len(found)


class _Selections:
    def __init__(self, model: Any) -> None:
        onnx = require("onnx")
        self.graph, self._arrays, self._helper = model.graph, onnx.numpy_helper, onnx.helper
        self._tensors = {t.name: t for t in self.graph.initializer}
        self._opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
        outputs = [value.name for value in self.graph.output]
        self._uses = Counter([*outputs, *(name for n in self.graph.node for name in n.input)])
        self._readers = {name: n for n in self.graph.node for name in n.input}
        self._widths = {
            v.name: v.type.tensor_type.shape.dim[CHANNELS].dim_value
            for v in (*self.graph.value_info, *self.graph.input)
            if len(v.type.tensor_type.shape.dim) > CHANNELS
        }

    def index_of(self, node: Any) -> Ints | None:
        """Return the channels that a node selects; None if it does something else."""
        if node.op_type != "Gather" or node.input[1] not in self._tensors:
            return None
        if [a.i for a in node.attribute if a.name == "axis"] != [CHANNELS]:
            return None
        found: Ints = self._held(node.input[1])
        return found if found.ndim == 1 else None

    def slice(self, node: Any) -> None:
        """Turn a Gather into a Slice, if one selects the same."""
        index = self.index_of(node)
        bounds = None if index is None else as_slice(index)
        if bounds is None or self._opset < SLICE_OPSET:
            return
        start, end, step = bounds
        named = {"starts": start, "ends": end, "axes": CHANNELS, "steps": step}
        inputs = [self._add(f"{node.output[0]}_{n}", np.array([v], np.int64)) for n, v in named.items()]
        made = self._helper.make_node("Slice", [node.input[0], *inputs], list(node.output), name=node.name)
        node.CopyFrom(made)

    def absorb(self, node: Any) -> bool:
        """Let the convolution behind a selection read all channels, if that is cheaper; tell whether it does."""
        index, between = self.index_of(node), self._until_convolution(node)
        width = self._widths.get(node.input[0], 0)
        if index is None or not between or not width or len(set(index.tolist())) < len(index):
            return False
        layer = between[-1]
        kernel = self._held(layer.input[1])
        strides = [s for a in layer.attribute if a.name == "strides" for s in a.ints]
        extra = (kernel[0, 0].size * len(kernel) / math.prod(strides) + len(between) - 1) * (
            width - len(index)
        )
        if extra > COPY * len(index):
            return False
        self._widen(layer, 1, index, width, axis=1)
        for norm in between[:-1]:
            if norm.op_type == "BatchNormalization":  # the other channels become 0, whatever they are
                for place, fill in ((1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0)):
                    self._widen(norm, place, index, width, axis=0, fill=fill)
        between[0].input[0] = node.input[0]
        self.graph.node.remove(node)
        stale = {n.output[0] for n in (node, *between[:-1])}  # their shapes have changed
        kept = [v for v in self.graph.value_info if v.name not in stale]
        del self.graph.value_info[:]
        self.graph.value_info.extend(kept)
        return True

    def drop_unused(self) -> None:
        """Drop tensors that no node reads any more."""
        needed = {name for n in self.graph.node for name in n.input} | {v.name for v in self.graph.output}
        kept = [t for t in self.graph.initializer if t.name in needed]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)

    def _until_convolution(self, node: Any) -> list[Any]:
        """Return the nodes behind a selection up to a convolution; none if another kind is between, or reads along."""
        found: list[Any] = []
        while self._uses[node.output[0]] == 1 and len(node.output) == 1:
            node = self._readers[node.output[0]]
            found.append(node)
            if node.op_type == "Conv":
                groups = [a.i for a in node.attribute if a.name == "group"]
                return found if groups in ([], [1]) and node.input[1] in self._tensors else []
            norm = node.op_type == "BatchNormalization" and all(n in self._tensors for n in node.input[1:])
            if not norm and node.op_type not in _PER_VALUE:
                break
        return []

    def _widen(self, node: Any, place: int, index: Ints, width: int, axis: int, fill: float = 0.0) -> None:
        held = self._held(node.input[place])
        shape = [*held.shape]
        shape[axis] = width
        wide = np.full(shape, fill, held.dtype)
        wide[(slice(None),) * axis + (index,)] = held
        node.input[place] = self._add(f"{node.input[place]}_of_all", wide)

    def _held(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._arrays.to_array(self._tensors[name])
        return found

    def _add(self, name: str, value: NDArray[Any]) -> str:
        while name in self._tensors or name in self._uses:
            name += "_"
        tensor = self._arrays.from_array(value, name)
        self.graph.initializer.append(tensor)
        self._tensors[name] = tensor
        return name
