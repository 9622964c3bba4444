"""Read an ONNX file as a torch module that every function of Slimilar takes.

    model = slimilar.load_onnx("model.onnx")
    result = slimilar.prune(model, model.example, calibration=images, flops=0.6)
    slimilar.deploy.onnx.export_onnx(result.model, "small.onnx", model.example)

ONNX Runtime is the reference: it computes what images do not change (weights, shapes, grids), and the module has to
give its answers before it is returned. No code of the file is run: it is data for the operators of this package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.constants import computed_values, constants
from slimilar.deploy.onnx_files.module import OnnxInput, OnnxModule, OnnxSource, OnnxStep, run
from slimilar.deploy.onnx_files.opening import open_file
from slimilar.deploy.onnx_files.operators import CONVERTERS, Built, OnnxConstant, OnnxNode, Unreadable
from slimilar.deploy.onnx_files.precision import as_declared, in_single_precision
from slimilar.deploy.onnx_files.reference import Array, answers, relative_difference, relaxed
from slimilar.deploy.onnx_files.verify import TOLERANCE, random_images
from slimilar.errors import InvalidInput, Option, VerificationError
from slimilar.utils.pytree import tensors_in

_FLOAT = 1
Shape = Sequence[int]


def load_onnx(path: str | os.PathLike[str], shape: Shape | Sequence[Shape] | None = None) -> OnnxModule:
    """Return the model of an ONNX file in evaluation mode, after comparing its outputs with ONNX Runtime.

    `shape` is the shape of one image, such as (3, 224, 224), if the size in the file is dynamic or another size is
    needed; for several inputs, a list of shapes. `model.example` is an input of that size.
    """
    file = Path(path).expanduser()
    original = open_file(file)
    model = in_single_precision(original)
    inputs = _inputs(file, model, shape)
    try:
        sample = _Sample.of(model, inputs)
    except InvalidInput as error:
        raise InvalidInput(f"{file} must be a file that ONNX Runtime runs, but: {error}") from error
    try:
        held = constants(model, computed_values(model), sample.constant_feeds)
    except Unreadable as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from error
    module = _built(file, model, inputs, held, sample)
    if model is not original:
        module.source = _in_half(module.source, original, sample)
    _compare(file, model, module, sample)
    return module


def _in_half(source: OnnxSource, original: Any, sample: _Sample) -> OnnxSource:
    """Return what is remembered of a file in half precision: the file itself, and its constants as they are there."""
    feeds = [as_declared(original, feed) for feed in sample.constant_feeds]
    held = constants(original, computed_values(original), feeds)
    known = {name: held[name].value for name in source.computed_constants if name in held}
    return replace(source, content=original.SerializeToString(), computed_constants=known)


# --- the interface ------------------------------------------------------------------------------------------


def _inputs(file: Path, model: Any, shape: Shape | Sequence[Shape] | None) -> tuple[OnnxInput, ...]:
    held = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in held]
    wanted = _shapes(shape, len(values))
    return tuple(_input(file, value, given) for value, given in zip(values, wanted, strict=True))


def _shapes(shape: Shape | Sequence[Shape] | None, count: int) -> list[tuple[int, ...] | None]:
    if shape is None:
        return [None] * count
    given = [tuple(s) if isinstance(s, Sequence) else s for s in shape]
    several = all(isinstance(s, tuple) for s in given)
    found: list[Any] = given if several else [tuple(given)]
    if len(found) != count or not all(isinstance(n, int) and n > 0 for s in found for n in s):
        raise InvalidInput(f"shape must be that of one image for each of the {count} inputs, got {shape!r}")
    return found


def _input(file: Path, value: Any, given: tuple[int, ...] | None) -> OnnxInput:
    kind = value.type.tensor_type
    if kind.elem_type != _FLOAT:
        name = require("onnx").TensorProto.DataType.Name(kind.elem_type) if kind.elem_type else "no tensor"
        raise InvalidInput(
            f"{file} must take float32 or float16, but its input {value.name!r} is {name}: extract the network after "
            "its Cast (onnx.utils.extract_model)"
        )
    declared = tuple(d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim)
    if len(declared) < 2:
        raise InvalidInput(f"{file} must take batches, but its input {value.name!r} has {len(declared)} axes")
    if given is not None and len(given) != len(declared) - 1:
        raise InvalidInput(f"shape must have {len(declared) - 1} numbers for {value.name!r}, got {given}")
    if given is None and None in declared[1:]:
        known = "x".join("?" if n is None else str(n) for n in declared[1:])
        raise InvalidInput(
            f"{file} has a dynamic size for its input {value.name!r} ({known}): pass the size to prune for, as in ",
            Option("input", "3x224x224", "shape=(3, 224, 224)"),
        )
    return OnnxInput(value.name, given or tuple(n or 0 for n in declared[1:]), declared)


# --- a sample -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sample:
    """Random images, and the batch sizes that the file takes."""

    batch: int
    fixed: bool
    feeds: dict[str, Array]
    constant_feeds: list[Mapping[str, Array]]
    wanted: dict[str, Array]  # what ONNX Runtime answers

    @classmethod
    def of(cls, model: Any, inputs: tuple[OnnxInput, ...]) -> _Sample:
        content, outputs = relaxed(model), [value.name for value in model.graph.output]
        feeds = random_images(inputs, 2)
        try:  # a batch that the file states may still be one of many
            wanted = answers(content, feeds, outputs)
        except InvalidInput:
            raise
        except Exception:
            wanted = {}
        if wanted and _follows(content, feeds, wanted):
            return cls(2, False, feeds, [{name: x[:n] for name, x in feeds.items()} for n in (1, 2)], wanted)
        batch = inputs[0].declared[0] or 1
        feeds = random_images(inputs, batch)
        try:
            return cls(batch, True, feeds, [feeds], answers(content, feeds, outputs))
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidInput(f"running it failed with {reason}") from error

    def tensors(self) -> dict[str, Tensor]:
        """Return the images as tensors."""
        return {name: torch.from_numpy(x) for name, x in self.feeds.items()}

    def tensors_doubled(self) -> dict[str, Tensor]:
        """Return twice as many images where the file fixes their number, to see what has to follow it."""
        return {name: torch.cat([x, x]) for name, x in self.tensors().items()} if self.fixed else {}


def _follows(content: bytes, feeds: Mapping[str, Array], wanted: dict[str, Array]) -> bool:
    """Tell whether one image alone gives what it gives beside another."""
    try:
        alone = answers(content, {name: x[:1] for name, x in feeds.items()}, list(wanted))
    except Exception:
        return False
    return all(_agrees(alone[name], both) for name, both in wanted.items())


def _agrees(alone: Array, both: Array) -> bool:
    axis = next((a for a, (m, n) in enumerate(zip(alone.shape, both.shape, strict=False)) if m != n), None)
    if alone.ndim != both.ndim or axis is None or both.shape[axis] != 2 * alone.shape[axis]:
        return False
    return relative_difference(alone, both.take(range(alone.shape[axis]), axis)) < TOLERANCE


# --- the module ---------------------------------------------------------------------------------------------


def _built(
    file: Path, model: Any, inputs: tuple[OnnxInput, ...], held: dict[str, OnnxConstant], sample: _Sample
) -> OnnxModule:
    """Convert the operators one by one, running each on the sample: the next one may have to know its shapes."""
    onnx = require("onnx")
    opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    values, doubled = sample.tensors(), sample.tensors_doubled()
    layers: dict[str, nn.Module] = {}
    steps: list[OnnxStep] = []
    for k, proto in enumerate(model.graph.node):
        if not any(name in values for name in proto.input) or proto.op_type in ("Shape", "Size"):
            continue
        given = [values[n] if n in values else held.get(n) for n in proto.input]
        twice = [doubled.get(n) for n in proto.input]
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        outputs = tuple(proto.output)
        count = max(i for i, name in enumerate(outputs, 1) if name)
        node = OnnxNode(proto.op_type, opset, settings, given, count, sample.batch, sample.fixed, twice)
        built = _converted(file, proto, node)
        name = _name(proto, k, layers)
        step = OnnxStep(
            k, name, tuple(proto.input[i] for i in built.takes), outputs, built.slots, built.sizes
        )
        layers[name] = built.module.eval()
        values.update(zip(outputs, _tried(file, proto, built, step, values, sample.batch), strict=False))
        if doubled:
            doubled.update(
                zip(outputs, _tried_doubled(file, proto, built, step, doubled, sample), strict=False)
            )
        steps.append(step)
    names = tuple(value.name for value in model.graph.output)
    missing = [name for name in names if name not in values]
    if missing:
        raise InvalidInput(
            f"{file} must compute its outputs from its inputs, but {missing[0]!r} is a constant"
        )
    initial = {tensor.name for tensor in model.graph.initializer}
    computed = {name: constant.value for name, constant in held.items() if name not in initial}
    kinds = tuple(proto.op_type for proto in model.graph.node)
    source = OnnxSource(
        model.SerializeToString(), inputs, names, _freeing(steps, names), opset, kinds, computed
    )
    return OnnxModule(source, layers).eval()


def _converted(file: Path, proto: Any, node: OnnxNode) -> Built:
    where = f"the operator {proto.op_type}" + (f" ({proto.name})" if proto.name else "")
    if proto.op_type not in CONVERTERS:
        raise InvalidInput(
            f"{file} cannot be read: {where} is not supported; extract the network before "
            f"it, up to {proto.input[0] if proto.input else 'its inputs'}, for example with onnx.utils.extract_model"
        )
    try:
        return CONVERTERS[proto.op_type](node)
    except Unreadable as error:
        raise InvalidInput(f"{file} cannot be read: {where} has {error}, which is not supported") from error
    except (KeyError, AssertionError, IndexError, ValueError, TypeError) as error:
        raise InvalidInput(f"{file} cannot be read: {where} is not as ONNX describes it") from error


def _tried(
    file: Path, proto: Any, built: Built, step: OnnxStep, values: Mapping[str, Tensor], batch: int
) -> tuple[Tensor, ...]:
    try:
        with torch.no_grad():
            return run(built.module, step, values, batch)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise InvalidInput(
            f"{file} cannot be read: the operator {proto.op_type} ({proto.name}) failed in PyTorch: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from error


def _tried_doubled(
    file: Path, proto: Any, built: Built, step: OnnxStep, values: Mapping[str, Tensor], sample: _Sample
) -> tuple[Tensor, ...]:
    """Run an operator of a file with a fixed batch on twice as many images."""
    try:
        with torch.no_grad():
            return run(built.module, step, values, 2 * sample.batch)
    except Exception as error:
        where = f"the operator {proto.op_type}" + (f" ({proto.name})" if proto.name else "")
        raise _fixed_batch(file, sample, where) from error


def _fixed_batch(file: Path, sample: _Sample, where: str) -> InvalidInput:
    return InvalidInput(
        f"{file} must treat every image of a batch alike, but {where} fixes the batch to {sample.batch}; "
        "export it with a dynamic batch size"
    )


def _name(proto: Any, k: int, taken: Mapping[str, object]) -> str:
    """Return a name for a submodule: that of the operator, as far as Python takes it.

    >>> from types import SimpleNamespace as Proto
    >>> _name(Proto(name="/layer1/conv.2/Conv", op_type="Conv"), 7, {})
    'layer1_conv_2_Conv'
    """
    name = re.sub(r"\W+", "_", proto.name).strip("_") or f"{proto.op_type}_{k}"
    name = f"_{name}" if name[0].isdigit() else name
    return (
        f"{name}_{k}"
        if name in taken or hasattr(OnnxModule, name) or name in ("source", "training")
        else name
    )


def _freeing(steps: list[OnnxStep], outputs: tuple[str, ...]) -> tuple[OnnxStep, ...]:
    """Return the steps with what can be forgotten after each."""
    last = {name: k for k, step in enumerate(steps) for name in (*step.outputs, *step.inputs)}
    free: dict[int, list[str]] = {}
    for name, k in last.items():
        if name not in outputs and name:
            free.setdefault(k, []).append(name)
    return tuple(replace(step, free=tuple(free.get(k, ()))) for k, step in enumerate(steps))


# --- the comparison -----------------------------------------------------------------------------------------


def _compare(file: Path, model: Any, module: OnnxModule, sample: _Sample) -> None:
    """Raise unless the module gives what ONNX Runtime gives, also for other batch sizes."""
    found = _outputs(module, sample.feeds)
    if not all(relative_difference(sample.wanted[n], found[n]) < TOLERANCE for n in found):
        raise VerificationError(
            f"{file} cannot be read: PyTorch and ONNX Runtime first differ at "
            f"{_first_difference(model, module, sample)}; "
            "please report the file"
        )
    try:
        alone = _outputs(module, {name: x[:1] for name, x in sample.feeds.items()})
        both = _outputs(module, {name: np.concatenate([x[:1], x[-1:]]) for name, x in sample.feeds.items()})
    except RuntimeError as error:  # an operator that two batch sizes fit by chance
        raise _fixed_batch(file, sample, "it") from error
    if not all(_agrees(alone[n], both[n]) for n in found):
        raise _fixed_batch(file, sample, "it")


def _outputs(module: OnnxModule, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with torch.no_grad():
        found = module(*(torch.from_numpy(x) for x in feeds.values()))
    return dict(zip(module.source.outputs, (t.numpy() for t in tensors_in(found)), strict=True))


def _first_difference(model: Any, module: OnnxModule, sample: _Sample) -> str:
    """Return the first operator whose outputs differ."""
    values = sample.tensors()
    for step in module.source.steps:
        with torch.no_grad():
            found = run(module._modules[step.layer], step, values, sample.batch)
        names = [name for name in step.outputs if name][: len(found)]
        wanted = answers(relaxed(model, names), sample.feeds, names)
        if any(
            not relative_difference(wanted[n], t.numpy()) < TOLERANCE
            for n, t in zip(names, found, strict=True)
        ):
            node = model.graph.node[step.node]
            return f"the operator {node.op_type} ({node.name or step.layer})"
        values.update({n: torch.from_numpy(wanted[n]) for n in names})
    return "the outputs"
