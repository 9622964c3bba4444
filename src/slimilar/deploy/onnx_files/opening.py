"""Open an ONNX file that nobody vouches for: whole, inside its folder, and made of what can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slimilar.deploy.extras import require
from slimilar.deploy.model_names import check_onnx_file
from slimilar.errors import InvalidInput

_QUANTISED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "DynamicQuantizeLSTM",
    }
)
_DOMAINS = ("", "ai.onnx")
LARGEST = 2**31  # bytes: protobuf itself holds no more, and ONNX Runtime gets the model in one piece


def open_file(path: str | Path) -> Any:
    """Return the model of an ONNX file with its external data, functions inlined, or say what is wrong with it."""
    onnx = require("onnx")
    file = check_onnx_file(path)
    model = _parsed(onnx, file)
    _check_external(onnx, file, model)
    try:
        onnx.load_external_data_for_model(model, str(file.parent))
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # onnx raises what its C++ does
        raise InvalidInput(
            f"{file} must be a valid ONNX file, but is not: {_first_line(error)}; export it again"
        ) from error
    _check_operators(file, model)
    return model


def _parsed(onnx: Any, file: Path) -> Any:
    _check_size(file, file.stat().st_size)
    try:
        model = onnx.load_model_from_string(file.read_bytes())
    except Exception as error:
        raise InvalidInput(
            f"{file} must be a complete ONNX file, but is truncated or of another format; copy it again"
        ) from error
    if not model.graph.node or not model.opset_import:
        raise InvalidInput(f"{file} must be an ONNX file with a graph, but holds no operator; copy it again")
    return model


def _check_size(file: Path, size: int) -> None:
    if size >= LARGEST:
        raise InvalidInput(
            f"{file} must be smaller than 2 GiB with its external data, but takes {size / 2**30:.1f} GiB: "
            "convert its weights to float16, or prune the model that it was exported from"
        )


def _check_external(onnx: Any, file: Path, model: Any) -> None:
    """Refuse external data outside the file's folder, or that is not there, before anything is read."""
    folder, total = file.parent.resolve(), file.stat().st_size
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        told = {entry.key: entry.value for entry in tensor.external_data}
        beside = folder / told.get("location", "")
        if not beside.resolve().is_relative_to(folder) or beside.is_symlink():
            raise InvalidInput(
                f"{file} must have its external data in its own folder, but refers to {told.get('location')!r}; "
                "nothing was read"
            )
        if not beside.is_file():
            raise InvalidInput(
                f"{file} must have its external data in the same folder, but {beside.name!r} is missing; copy it there"
            )
        size, (offset, length) = beside.stat().st_size, _place(told, file)
        if offset + (length or 0) > size:
            raise InvalidInput(
                f"{beside} must hold all of {file.name}'s data, but is truncated; copy it again"
            )
        total += size - offset if length is None else length
        _check_size(file, total)  # tensors may name the same bytes over and over: each is read for itself


def _place(told: dict[str, str], file: Path) -> tuple[int, int | None]:
    """Return where a tensor's data begins and how long it is; None if it goes on to the end."""
    try:
        offset = int(told.get("offset", 0))
        length = int(told["length"]) if "length" in told else None
    except ValueError as error:
        raise InvalidInput(
            f"{file} must state where its external data is in whole numbers, but does not"
        ) from error
    if offset < 0 or (length or 0) < 0:
        raise InvalidInput(f"{file} must state where its external data is, but has negative offsets")
    return offset, length


def _tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor of a model, also those in attributes, subgraphs and functions."""
    nodes = list(model.graph.node) + [n for f in model.functions for n in f.node]
    graphs = [model.graph]
    yield from model.graph.initializer
    while nodes or graphs:
        graph = graphs.pop() if graphs else None
        if graph is not None and graph is not model.graph:
            yield from graph.initializer
            nodes += graph.node
        for node in nodes:
            for attribute in node.attribute:
                yield from ([attribute.t] if attribute.HasField("t") else [])
                yield from attribute.tensors
                graphs += [attribute.g] if attribute.HasField("g") else []
                graphs += attribute.graphs
        nodes = []


def _check_operators(file: Path, model: Any) -> None:
    """Refuse whole kinds of files by name; single operators are the reader's business."""
    kinds = {node.op_type for node in model.graph.node}
    quantised = sorted(kinds & _QUANTISED)
    if quantised:
        raise InvalidInput(
            f"{file} must be a floating-point model, but is quantised ({quantised[0]}): "
            "prune the model it was made from, then quantise the result"
        )
    for node in model.graph.node:
        if node.domain not in _DOMAINS:
            raise InvalidInput(
                f"{file} must consist of standard ONNX operators, but {node.op_type} is from the domain "
                f"{node.domain!r}: export it without that runtime's fusions"
            )
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise InvalidInput(
                f"{file} must be one graph without control flow, but has the operator {node.op_type}: "
                "export the branch that you need"
            )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
