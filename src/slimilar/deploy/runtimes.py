"""Runtimes for a model: PyTorch, torch.compile, ONNX Runtime, OpenVINO, TensorRT.

Each returns a function that runs the model once.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput, Option
from slimilar.utils.modules import copy_with, device_of
from slimilar.utils.pytree import Example, arguments, tensors_in

Run = Callable[[], object]


def pytorch(model: nn.Module, example: Example) -> Run:
    """Run the model in PyTorch, in evaluation mode and without gradients."""
    copy = copy_with(model, {}).eval()
    args, kwargs = arguments(example)

    @torch.inference_mode()
    def run() -> object:
        return copy(*args, **kwargs)

    return run


def compiled(model: nn.Module, example: Example) -> Run:
    """Run the model with torch.compile; compiled now, not during the first measurement."""
    copy: Any = torch.compile(copy_with(model, {}).eval())
    args, kwargs = arguments(example)

    @torch.inference_mode()
    def run() -> object:
        return copy(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own internals
        run()
    return run


def onnxruntime(model: nn.Module, example: Example) -> Run:
    """Run the model in ONNX Runtime: on the GPU if the model is there, else on as many CPU threads as PyTorch uses."""
    gpu = device_of(model).type == "cuda"
    return _onnx_session(model, example, ["CUDAExecutionProvider"] if gpu else ["CPUExecutionProvider"])


def tensorrt(model: nn.Module, example: Example) -> Run:
    """Run the model in TensorRT, through ONNX Runtime."""
    return _onnx_session(model, example, ["TensorrtExecutionProvider", "CUDAExecutionProvider"])


def _onnx_session(model: nn.Module, example: Example, providers: list[str]) -> Run:
    runtime = require("onnxruntime")
    offered = runtime.get_available_providers()
    if providers[0] not in offered:
        raise InvalidInput(
            f"ONNX Runtime must have {providers[0]}, got {', '.join(offered)}: install onnxruntime-gpu"
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "model.onnx", example, dynamic_batch=False).path
        session = runtime.InferenceSession(file.read_bytes(), options, providers=providers)
    given = zip(session.get_inputs(), tensors_in(arguments(example)), strict=True)
    feed = {entry.name: (t.half() if "float16" in entry.type else t).cpu().numpy() for entry, t in given}
    return lambda: session.run(None, feed)


def openvino(model: nn.Module, example: Example) -> Run:
    """Run the model in OpenVINO on the CPU, in float32: some CPUs report bfloat16 but fail to execute it."""
    library = require("openvino", "openvino")
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "model.onnx", example, dynamic_batch=False).path
        core = library.Core()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        network = core.compile_model(core.read_model(file), "CPU", settings)
    feed = [t.cpu().numpy() for t in tensors_in(arguments(example))]
    request = network.create_infer_request()
    return lambda: request.infer(feed)


ENGINES: dict[str, Callable[[nn.Module, Example], Run]] = {
    "pytorch": pytorch,
    "compile": compiled,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "tensorrt": tensorrt,
}
_LIBRARIES = {
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "tensorrt": ("onnx", "onnxscript", "onnxruntime", "tensorrt"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


def available() -> list[str]:
    """Return the runtimes whose libraries are installed."""
    return [e for e in ENGINES if all(importlib.util.find_spec(name) for name in _LIBRARIES.get(e, ()))]


def check_engine(name: str, option: str = "engine") -> str:
    """Return the name of an engine, or raise with the names that exist."""
    if name not in ENGINES:
        raise InvalidInput(Option(option), f" must be one of {', '.join(ENGINES)}, got {name!r}")
    return name
