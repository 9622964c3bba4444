"""Export to ONNX; the file is compared with PyTorch on random input before it is moved into place."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.module import OnnxModule
from slimilar.deploy.onnx_files.opening import LARGEST
from slimilar.deploy.onnx_files.verify import HALF_TOLERANCE, TOLERANCE, check_written
from slimilar.deploy.onnx_files.writer import fix_inputs, rewritten
from slimilar.deploy.onnx_selections import simplify_selections
from slimilar.errors import InvalidInput, SlimilarError, VerificationError
from slimilar.utils.atomic import replacing, write_bytes
from slimilar.utils.modules import check_model, copy_with, device_of
from slimilar.utils.pytree import Example, arguments, tensors_in


@dataclass(frozen=True)
class Exported:
    """An exported ONNX file. `error` is the largest difference from PyTorch, relative to the largest value."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    bytes: int
    error: float | None  # None if ONNX Runtime is not installed


def export_onnx(
    model: nn.Module, path: str | os.PathLike[str], example: Example, *, dynamic_batch: bool = True
) -> Exported:
    """Export a model in evaluation mode; the batch size is dynamic unless `dynamic_batch` is false.

    A model that `load_onnx` read is written into the graph of its file instead: names, opset, metadata and open sizes
    stay. There `dynamic_batch=False` fixes the inputs to the shapes of the example.
    """
    if isinstance(model, OnnxModule):
        return _write_back(model, Path(path).expanduser(), None if dynamic_batch else _inputs(example, False))
    for name in ("onnx", "onnxscript"):
        require(name)
    model = check_model(model)
    _check_size(model)
    if device_of(model).type != "cpu":
        model = copy_with(model, {}).cpu()
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        return _export(model, Path(path).expanduser(), _inputs(example, dynamic_batch), dynamic_batch)
    finally:
        for module, training in modes.items():
            module.training = training


def _write_back(module: OnnxModule, path: Path, shapes: tuple[Tensor, ...] | None) -> Exported:
    written = rewritten(module)
    difference = check_written(module, written)
    if shapes is not None:
        fix_inputs(
            written, {i.name: tuple(t.shape) for i, t in zip(module.source.inputs, shapes, strict=True)}
        )
    content = written.SerializeToString()
    write_bytes(path, content)
    names = tuple(i.name for i in module.source.inputs)
    return Exported(path, names, module.source.outputs, module.source.opset, len(content), difference)


def _check_size(model: nn.Module) -> None:
    size = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    if size >= LARGEST:
        raise InvalidInput(
            f"a model to export must be smaller than 2 GiB, the most that one ONNX file holds, but takes "
            f"{size / 2**30:.1f} GiB: prune it further, or export it in float16"
        )


def _inputs(example: Example, dynamic_batch: bool) -> tuple[Tensor, ...]:
    """Return random input of the example's shapes; with batch size 2, because export treats 1 as a constant."""
    args, kwargs = arguments(example)
    if kwargs or not all(isinstance(a, Tensor) and a.ndim > 0 for a in args):
        raise InvalidInput(
            "an example for ONNX must be a tensor or a tuple of tensors, got keyword arguments or other values"
        )
    shapes = [(2, *a.shape[1:]) if dynamic_batch else tuple(a.shape) for a in args]
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(shape, generator=generator) for shape in shapes)
    return tuple(x.to(a.dtype) for x, a in zip(made, args, strict=True))


def _export(model: nn.Module, path: Path, inputs: tuple[Tensor, ...], dynamic: bool) -> Exported:
    batch = torch.export.Dim("batch", min=1, max=2**16)
    names = tuple(["input"] if len(inputs) == 1 else [f"input{i}" for i in range(len(inputs))])
    with torch.no_grad():
        count = len(list(tensors_in(model(*inputs))))
    outputs = tuple(["output"] if count == 1 else [f"output{i}" for i in range(count)])
    with _quiet():
        try:
            program: Any = torch.onnx.export(
                model, inputs, dynamo=True, verbose=False, input_names=names, output_names=outputs,
                dynamic_shapes=tuple({0: batch} for _ in inputs) if dynamic else None,
            )  # fmt: skip
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise SlimilarError(f"PyTorch could not export this model to ONNX: {reason[0]}") from error
    with replacing(path) as unfinished:
        # Not program.save(): from 1.5 GiB on it puts the weights into a second file, whatever it is asked for.
        written = program.model_proto
        simplify_selections(written)
        unfinished.write_bytes(written.SerializeToString())
        difference = _compare(model, unfinished, inputs, dynamic)
        size = unfinished.stat().st_size
    return Exported(path, names, outputs, int(program.model.opset_imports[""]), size, difference)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings of PyTorch's exporter about its own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _compare(model: nn.Module, file: Path, inputs: tuple[Tensor, ...], dynamic: bool) -> float | None:
    """Return the largest relative difference from PyTorch; raise if rounding cannot explain it."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        return None
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    batches = [inputs, tuple(torch.cat([t, t.flip(-1)])[:3] for t in inputs)] if dynamic else [inputs]
    worst = max(_difference(model, session, batch) for batch in batches)
    half = inputs[0].dtype in (torch.float16, torch.bfloat16)
    if not worst < (HALF_TOLERANCE if half else TOLERANCE):
        raise VerificationError(
            f"the ONNX model must match PyTorch, but differs by {worst:.2g} of the largest value; "
            "please report this model"
        )
    return worst


def _difference(model: nn.Module, session: Any, batch: tuple[Tensor, ...]) -> float:
    names = [entry.name for entry in session.get_inputs()]
    given = session.run(None, dict(zip(names, (t.numpy() for t in batch), strict=True)))
    with torch.no_grad():
        wanted = [t.numpy() for t in tensors_in(model(*batch))]
    if [a.shape for a in wanted] != [b.shape for b in given]:
        return float("inf")
    return max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12)) for a, b in zip(wanted, given, strict=True)
    )
