"""Write a module that was read from an ONNX file back into that file's graph.

The graph stays: names, opset, metadata, open sizes and every operator are those of the original. What changes are
the tensors and sizes that changed in the module, biases that it gained, and channels that a batch norm selects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.module import Layer, OnnxModule, OnnxSource, OnnxStep, SizePlace, TensorPlace
from slimilar.deploy.onnx_files.reference import Array
from slimilar.deploy.onnx_selections import CHANNELS, SLICE_OPSET, as_slice
from slimilar.errors import VerificationError
from slimilar.utils.pytree import tensors_in


def rewritten(module: OnnxModule) -> Any:
    """Return the ONNX model of a module, pruned or not, in the graph that it was read from."""
    source = module.source
    model = require("onnx").load_model_from_string(source.content)
    graph, shapes = _Graph(model, source), _reshaped(module, model.graph)
    for step in source.steps:
        layer = module.get_submodule(step.layer)
        for slot in step.slots:
            graph.set_tensor(step.node, slot, _value(layer, slot))
        for sizes in step.sizes:
            now: tuple[int, ...] = getattr(layer, sizes.attribute)
            graph.set_sizes(step.node, sizes, now, shapes.get(step.layer, ())[len(now) :])
        if not isinstance(layer, Layer):
            _write_layer(graph, step, layer)
    graph.finish()
    return model


def _reshaped(module: OnnxModule, graph: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes that reshaping layers make: the file names axes that the module takes as they come."""
    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, layer: nn.Module, given: Any, made: torch.Tensor) -> None:
        found[name] = tuple(made.shape)

    with ExitStack() as undo, torch.no_grad():
        for step in module.source.steps:
            if graph.node[step.node].op_type == "Reshape":
                layer = module.get_submodule(step.layer)
                undo.callback(layer.register_forward_hook(partial(note, step.layer)).remove)
        module(*tensors_in(module.example))
    return found


def _value(layer: nn.Module, slot: TensorPlace) -> Array:
    owner, _, name = slot.tensor.rpartition(".")
    tensor: torch.Tensor = getattr(layer.get_submodule(owner), name).detach().cpu()
    found: Array = (tensor.T if slot.transposed else tensor).contiguous().numpy()
    return found


def _write_layer(graph: _Graph, step: OnnxStep, layer: nn.Module) -> None:
    """Write what torch's own modules hold beside their tensors: groups, a bias that was added, a selection."""
    inner = layer[-1] if isinstance(layer, nn.Sequential) else layer
    groups, bias, index = (getattr(inner, name, None) for name in ("groups", "bias", "index"))
    if isinstance(groups, int):
        graph.set_groups(step.node, groups)
    gained = isinstance(bias, torch.Tensor) and not any(s.tensor.endswith("bias") for s in step.slots)
    if gained:
        graph.add_bias(step.node, bias.detach().cpu().numpy())  # type: ignore[union-attr]
    if isinstance(index, torch.Tensor):
        graph.select(step.node, index.cpu().numpy())


class _Graph:
    """A graph that is being changed: operators keep their numbers until it is finished."""

    def __init__(self, model: Any, source: OnnxSource) -> None:
        onnx = require("onnx")
        self._helper, self._arrays = onnx.helper, onnx.numpy_helper
        self.model, self.graph = model, model.graph
        self._opset, self._computed = source.opset, source.computed_constants
        self._tensors = {t.name: t for t in model.graph.initializer}
        self._constant_nodes = {n.output[0] for n in model.graph.node if n.op_type == "Constant"}
        self._before: dict[int, list[Any]] = {}
        self._after: dict[int, list[Any]] = {}
        self._names = {n for node in self.graph.node for n in (*node.input, *node.output)} | set(
            self._tensors
        )
        self._stored_half = {
            n.output[0]: n.input[0]
            for n in self.graph.node
            if n.op_type == "Cast"
            and n.input[0] in self._tensors
            and self._held(n.input[0]).dtype == np.float16
        }
        self._uses = Counter(n for node in self.graph.node for n in node.input)

    def set_tensor(self, k: int, slot: TensorPlace, value: Array) -> None:
        """Let an input of an operator be this tensor; one that did not change is left alone."""
        name = self.graph.node[k].input[slot.input]
        held = self._held(name)
        if held.shape != value.shape and held.size == value.size and slot.tensor.endswith("bias"):
            value = value.reshape(held.shape)  # a bias of Gemm may have more axes
        if held.shape == value.shape and np.array_equal(held, value):
            return
        self._replace(k, slot.input, value.astype(held.dtype))

    def set_sizes(self, k: int, sizes: SizePlace, now: tuple[int, ...], behind: tuple[int, ...] = ()) -> None:
        """Write those integers of an operator that changed; the list in the file may go on with those `behind`."""
        node, changed = self.graph.node[k], [a != b for a, b in zip(sizes.original, now, strict=True)]
        if isinstance(sizes.place, str):
            if any(changed):
                self._set_attribute(node, sizes.place, list(now))
            return
        name = node.input[sizes.place] if sizes.place < len(node.input) else ""
        known = name in self._tensors or name in self._computed
        held = self._held(name).reshape(-1) if known else np.array(now, np.int64)
        rest = held[len(now) :]
        behind = behind[: len(rest)] or tuple(rest.tolist())  # none where the file computes the sizes
        changed += [bool(a > 0) and a != b for a, b in zip(rest, behind, strict=True)]
        if not any(changed):
            return
        if name and not known:
            raise VerificationError(f"the sizes of {node.name} are computed in a way that cannot be written")
        del_attribute(node, "num_outputs")
        value = np.where(changed, [*now, *behind], held).astype(np.int64)
        if name in self._computed and name not in self._constant_nodes:
            value_name = self._add(node, "sizes", value)
            mask = self._add(node, "changed", np.array(changed))
            result = self._fresh(f"{name}_pruned")
            self._before.setdefault(k, []).append(
                self._helper.make_node("Where", [mask, value_name, name], [result], name=result)
            )
            node.input[sizes.place] = result
        else:
            self._replace(k, sizes.place, value)

    def set_groups(self, k: int, groups: int) -> None:
        """Write the number of groups of a convolution."""
        node = self.graph.node[k]
        held = next((a.i for a in node.attribute if a.name == "group"), 1)
        if held != groups:
            self._set_attribute(node, "group", groups)

    def add_bias(self, k: int, bias: Array) -> None:
        """Give a layer without a bias one; a product of matrices gets a sum behind it."""
        node = self.graph.node[k]
        kinds = [self._held(n).dtype for n in node.input if n in self._tensors or n in self._computed]
        name = self._add(node, "bias", bias.astype(kinds[0] if kinds else bias.dtype))
        if node.op_type != "MatMul":
            del node.input[2:]
            node.input.append(name)
            return
        output = node.output[0]
        node.output[0] = self._fresh(f"{output}_without_bias")
        self._after.setdefault(k, []).append(
            self._helper.make_node(
                "Add", [node.output[0], name], [output], name=self._fresh(f"{output}_bias")
            )
        )

    def select(self, k: int, index: Array) -> None:
        """Put a selection of channels in front of an operator: a slice, if one will do."""
        node = self.graph.node[k]
        result = self._fresh(f"{node.input[0]}_selected")
        bounds = as_slice(index) if self._opset >= SLICE_OPSET else None
        kind, axis, values = "Gather", {"axis": CHANNELS}, [index]
        if bounds is not None:
            start, end, step = bounds
            kind, axis, values = "Slice", {}, [np.array([n]) for n in (start, end, CHANNELS, step)]
        inputs = [self._add(node, "index", v.astype(np.int64)) for v in values]
        made = self._helper.make_node(kind, [node.input[0], *inputs], [result], name=result, **axis)
        self._before.setdefault(k, []).append(made)
        node.input[0] = result

    def finish(self) -> None:
        """Put new operators in their places and drop what nobody needs any more."""
        nodes = [
            n
            for k, node in enumerate(self.graph.node)
            for n in (*self._before.get(k, []), node, *self._after.get(k, []))
        ]
        needed = {value.name for value in self.graph.output}
        kept = []
        for node in reversed(nodes):
            if any(name in needed for name in node.output):
                kept.append(node)
                needed.update(node.input)
        _set(self.graph.node, reversed(kept))
        stale = {t.name for t in self.graph.initializer if t.name not in needed}
        _set(self.graph.initializer, [t for t in self.graph.initializer if t.name not in stale])
        _set(self.graph.input, [v for v in self.graph.input if v.name not in stale])
        del self.graph.value_info[:]

    # --- helpers ------------------------------------------------------------------------------------------

    def _held(self, name: str) -> Array:
        found: Array = (
            self._arrays.to_array(self._tensors[name]) if name in self._tensors else self._computed[name]
        )
        return found

    def _replace(self, k: int, place: int, value: Array) -> None:
        node = self.graph.node[k]
        while len(node.input) <= place:
            node.input.append("")
        name = node.input[place]
        if name in self._tensors and self._uses[name] == 1:
            self._tensors[name].CopyFrom(self._arrays.from_array(value, name))
            self._declare(name, value)
        elif name in self._stored_half:
            node.input[place] = self._cast_from_half(k, self._stored_half[name], value)
        else:
            node.input[place] = self._add(node, name or "sizes", value)

    def _cast_from_half(self, k: int, stored: str, value: Array) -> str:
        """Store a tensor in half precision, as the one it replaces, and return the name of what it is cast to."""
        half = self._add(self.graph.node[k], stored, value.astype(np.float16))
        result, kind = self._fresh(f"{half}_single"), self._helper.np_dtype_to_tensor_dtype(value.dtype)
        self._before.setdefault(k, []).append(
            self._helper.make_node("Cast", [half], [result], name=result, to=kind)
        )
        return result

    def _add(self, node: Any, what: str, value: Array) -> str:
        name = self._fresh(f"{what}_pruned" if what in self._names else f"{node.name or node.op_type}_{what}")
        self.graph.initializer.append(self._arrays.from_array(np.ascontiguousarray(value), name))
        self._tensors[name] = self.graph.initializer[-1]
        self._declare(name, value, new=True)
        return name

    def _declare(self, name: str, value: Array, new: bool = False) -> None:
        """State the shape of a tensor among the inputs, where the file is so old that it has to be."""
        declared = [v for v in self.graph.input if v.name == name]
        info = self._helper.make_tensor_value_info(
            name, self._helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        if declared:
            declared[0].CopyFrom(info)
        elif new and self.model.ir_version < 4:
            self.graph.input.append(info)

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _set_attribute(self, node: Any, name: str, value: Any) -> None:
        del_attribute(node, name)
        node.attribute.append(self._helper.make_attribute(name, value))


def del_attribute(node: Any, name: str) -> None:
    """Remove an attribute of an operator, if it has it."""
    _set(node.attribute, [a for a in node.attribute if a.name != name])


def _set(field: Any, entries: Iterable[Any]) -> None:
    kept = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
    del field[:]
    field.extend(kept)


def fix_inputs(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Fix the sizes of a model's inputs, in place, and leave those of its outputs open."""
    for value in [*model.graph.input, *model.graph.output]:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.Clear()
            if value.name in shapes:
                dim.dim_value = shapes[value.name][axis]
