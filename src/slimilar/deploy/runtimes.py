"""Runtimes for a model: PyTorch, torch.compile, ONNX Runtime, OpenVINO, TensorRT.

Each returns a function that runs the model once.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.onnx_session import session_options
from slimilar.errors import InvalidInput, Option
from slimilar.utils.checks import check_positive_integer
from slimilar.utils.devices import device_name
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
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "model.onnx", example, dynamic_batch=False).path
        return onnxruntime_file(file, example, providers)


def onnxruntime_file(
    file: Path, example: Example, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> Run:
    """Run an ONNX file in ONNX Runtime."""
    runtime = require("onnxruntime")
    offered = runtime.get_available_providers()
    if providers[0] not in offered:
        raise InvalidInput(
            f"ONNX Runtime must have {providers[0]}, got {', '.join(offered)}: install onnxruntime-gpu"
        )
    options = session_options()
    session = runtime.InferenceSession(file.read_bytes(), options, providers=list(providers))
    given = zip(session.get_inputs(), tensors_in(arguments(example)), strict=True)
    feed = {entry.name: (t.half() if "float16" in entry.type else t).cpu().numpy() for entry, t in given}
    return lambda: session.run(None, feed)


def openvino(model: nn.Module, example: Example) -> Run:
    """Run the model in OpenVINO on the CPU."""
    require("openvino", "openvino")
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "model.onnx", example, dynamic_batch=False).path
        return openvino_file(file, example)


def openvino_file(file: Path, example: Example) -> Run:
    """Run an ONNX file in OpenVINO on the CPU, in float32: some CPUs report bfloat16 but fail to execute it."""
    core = require("openvino", "openvino").Core()
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


@dataclass(frozen=True)
class Runtime:
    """Where a model will run: what a latency is measured with. The device and the precision are the model's.

    >>> Runtime("onnxruntime", threads=1)
    Runtime(name='onnxruntime', threads=1, batch=None)
    """

    name: str = "pytorch"
    threads: int | None = None  # default: as many as PyTorch uses
    batch: int | None = None  # default: that of the example

    def __post_init__(self) -> None:
        check_engine(self.name, "runtime")
        for option in ("threads", "batch"):
            if getattr(self, option) is not None:
                check_positive_integer(getattr(self, option), option)

    @classmethod
    def of(cls, given: str | Runtime) -> Runtime:
        """Return a runtime, given as one or by its name."""
        return given if isinstance(given, Runtime) else cls(given)

    @contextmanager
    def thread_count(self) -> Iterator[None]:
        """Let PyTorch, from which the other runtimes take it, use so many threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def example(self, given: Example) -> Example:
        """Return an example of the batch size."""
        if self.batch is None:
            return given
        args, kwargs = arguments(given)
        sized = [_repeated(a, self.batch) for a in args]
        return tuple(sized) if not kwargs else {k: _repeated(v, self.batch) for k, v in kwargs.items()}

    def describe(self, device: torch.device) -> str:
        """Return what a report says about where a time was measured; call it inside `thread_count`."""
        count = torch.get_num_threads()
        threads = f"{count} thread{'s' * (count > 1)}" if device.type == "cpu" else str(device)
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.name}{batch}, {threads}, {device_name(device)}"


def _repeated(value: Any, batch: int) -> Any:
    """Return a tensor whose first axis has so many entries; other values as they are."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    return value[:1].expand(batch, *value.shape[1:]).contiguous()


def check_engine(name: str, option: str = "engine") -> str:
    """Return the name of an engine, or raise with the names that exist."""
    if name not in ENGINES:
        raise InvalidInput(Option(option), f" must be one of {', '.join(ENGINES)}, got {name!r}")
    return name
