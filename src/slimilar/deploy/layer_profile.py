"""Where the time of a model goes, layer by layer, as PyTorch or ONNX Runtime spends it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.onnx_session import session_options
from slimilar.utils.devices import synchronize
from slimilar.utils.modules import copy_with, device_of
from slimilar.utils.pytree import Example, arguments, tensors_in

_RUNS = 11


@dataclass(frozen=True)
class LayerTime:
    """The median time of one layer."""

    name: str
    kind: str
    milliseconds: float


def profile(engine: str, model: nn.Module, example: Example) -> list[LayerTime]:
    """Return the time of every layer, the longest first; none for an engine that does not tell."""
    found = PROFILERS[engine](model, example) if engine in PROFILERS else []
    return sorted(found, key=lambda layer: -layer.milliseconds)


def _in_pytorch(model: nn.Module, example: Example) -> list[LayerTime]:
    """Time every module without children by hooks; on an accelerator each one waits for the device."""
    copy, device = copy_with(model, {}).eval(), device_of(model)
    args, kwargs = arguments(example)
    spent: dict[str, list[float]] = {}
    began: dict[str, float] = {}

    def watch(name: str, module: nn.Module) -> None:
        def before(*_: Any) -> None:
            synchronize(device)
            began[name] = time.perf_counter()

        def after(*_: Any) -> None:
            synchronize(device)
            spent[name][-1] += 1000 * (time.perf_counter() - began[name])

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    leaves = {name: m for name, m in copy.named_modules() if not list(m.children())}
    for name, module in leaves.items():
        spent[name] = []
        watch(name, module)
    with torch.inference_mode():
        for _ in range(_RUNS):
            for samples in spent.values():
                samples.append(0.0)
            copy(*args, **kwargs)
    return [LayerTime(n, type(m).__name__, float(np.median(spent[n][1:]))) for n, m in leaves.items()]


def _in_onnxruntime(model: nn.Module, example: Example) -> list[LayerTime]:
    """Take the times of all nodes from ONNX Runtime's profile: what is left after it has fused them."""
    runtime = require("onnxruntime")
    options = session_options()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        file = export_onnx(model, Path(folder) / "model.onnx", example, dynamic_batch=False).path
        providers = ["CUDAExecutionProvider"] if device_of(model).type == "cuda" else ["CPUExecutionProvider"]
        session = runtime.InferenceSession(file.read_bytes(), options, providers=providers)
        names = [entry.name for entry in session.get_inputs()]
        feed = dict(zip(names, (t.cpu().numpy() for t in tensors_in(arguments(example))), strict=True))
        for _ in range(_RUNS):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]
            spent.setdefault(key, []).append(event["dur"] / 1000)
    return [LayerTime(name, kind, float(np.median(ms[1:]))) for (name, kind), ms in spent.items()]


PROFILERS: dict[str, Callable[[nn.Module, Example], list[LayerTime]]] = {
    "pytorch": _in_pytorch,
    "onnxruntime": _in_onnxruntime,
}
