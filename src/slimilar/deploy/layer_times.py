"""Times of single layers, measured in a runtime at a few widths, and kept in a cache.

A layer alone pays for what a network does not: conversions of its input and output into the runtime's own format.
ONNX Runtime and OpenVINO report the time of the layer itself, so that is what is taken from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_session import session_options
from slimilar.planning.rounding import AUTO
from slimilar.planning.time_model import LayerShape, LayerTimes, TimeTable
from slimilar.utils.atomic import write_text
from slimilar.utils.cache import cache_folder
from slimilar.utils.devices import device_name, synchronize

Floats = NDArray[np.float64]
LayerTimer = Callable[[LayerShape, int, int], float]  # milliseconds at an input and an output width

_SHARES = (0.25, 0.5, 0.75, 1.0)  # of a layer's widths
_RUNS = 7


def layer_times(
    runtime: str, device: torch.device, progress: Callable[[str, int, int], None] | None = None
) -> LayerTimes | None:
    """Return what measures layers in a runtime; None for a runtime that cannot be asked for single layers."""
    timer = layer_timer(runtime, device)
    if timer is None:
        return None

    def measured(shapes: Sequence[LayerShape]) -> Mapping[LayerShape, TimeTable]:
        wanted = list(dict.fromkeys(shapes))
        with known_times(runtime, device) as known:
            for done, shape in enumerate(wanted):
                if progress is not None:
                    progress("measuring layers", done, len(wanted))
                if _key(shape) not in known:
                    known[_key(shape)] = _table(shape, timer).tolist()
        return {s: TimeTable(*_axes(s), np.array(known[_key(s)])) for s in wanted}

    return measured


def layer_timer(runtime: str, device: torch.device) -> LayerTimer | None:
    """Return what times a layer in a runtime at an input and an output width; None if the runtime does not tell."""
    timer = _TIMERS.get(runtime)
    return None if timer is None else lambda shape, inputs, outputs: timer(shape, inputs, outputs, device)


@contextlib.contextmanager
def known_times(runtime: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Open what was measured in a runtime of this machine; what is added is kept."""
    file = _cache_file(runtime, device_name(device))
    known = _read(file)
    yield known
    _write(file, known)


def _axes(shape: LayerShape) -> tuple[Floats, Floats]:
    """Return the input and output widths of a layer's table; a depthwise layer has one width."""
    inputs = _widths(shape.inputs, shape.groups)
    return (inputs[-1:] if shape.groups == 0 else inputs), _widths(shape.outputs, shape.groups)


def _widths(full: int, groups: int) -> Floats:
    """Return some multiples of 16 up to a width, and the width itself; of 8 up to a width below 32.

    >>> _widths(96, 1).tolist(), _widths(24, 1).tolist(), _widths(3, 1).tolist()
    ([32.0, 48.0, 80.0, 96.0], [8.0, 16.0, 24.0], [3.0])
    """
    step = AUTO if full >= 2 * AUTO else AUTO // 2 if full >= AUTO else max(1, full // 4)
    step = int(np.lcm(step, max(1, groups)))
    near = {min(full, max(step, -(-int(full * share) // step) * step)) for share in _SHARES}
    return np.array(sorted({*near, full}) if full > 4 else [full], np.float64)


def _table(shape: LayerShape, timer: LayerTimer) -> Floats:
    inputs, outputs = _axes(shape)
    found = [[timer(shape, int(o) if shape.groups == 0 else int(i), int(o)) for o in outputs] for i in inputs]
    return np.array(found)


# --- runtimes ---------------------------------------------------------------------------------------------------------


def _in_pytorch(shape: LayerShape, inputs: int, outputs: int, device: torch.device) -> float:
    """Time a convolution with its batch norm, which PyTorch computes apart."""
    groups = outputs if shape.groups == 0 else shape.groups
    kinds: tuple[Any, Any] = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[
        len(shape.kernel) - 1
    ]  # fmt: skip
    layer = kinds[0](
        inputs, outputs, shape.kernel, shape.stride, shape.padding, shape.dilation, groups, bias=False
    )
    net = nn.Sequential(layer, kinds[1](outputs)).to(device).eval()
    x = torch.randn(shape.size[0], inputs, *shape.size[1:], device=device)
    with torch.inference_mode():
        return _median(lambda: net(x), device)


def _median(run: Callable[[], object], device: torch.device) -> float:
    samples = []
    run()
    for _ in range(_RUNS):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        samples.append(1000 * (time.perf_counter() - began))
    return float(np.median(samples))


def _onnx_layer(shape: LayerShape, inputs: int, outputs: int) -> tuple[bytes, NDArray[np.float32]]:
    """Return an ONNX model of one convolution, and an input."""
    onnx = require("onnx")
    helper, random = onnx.helper, np.random.default_rng(0)
    groups = outputs if shape.groups == 0 else shape.groups
    x = random.standard_normal((shape.size[0], inputs, *shape.size[1:])).astype(np.float32)
    weight = random.standard_normal((outputs, inputs // groups, *shape.kernel)).astype(np.float32)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=list(shape.stride), pads=[*shape.padding, *shape.padding],
        dilations=list(shape.dilation), group=groups, kernel_shape=list(shape.kernel),
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(x.shape))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), x


def _in_onnxruntime(shape: LayerShape, inputs: int, outputs: int, device: torch.device) -> float:
    """Take the time of the convolution from ONNX Runtime's profile."""
    runtime = require("onnxruntime")
    model, x = _onnx_layer(shape, inputs, outputs)
    options = session_options()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "layer")
        providers = ["CUDAExecutionProvider"] if device.type == "cuda" else ["CPUExecutionProvider"]
        session = runtime.InferenceSession(model, options, providers=providers)
        for _ in range(_RUNS + 1):
            session.run(None, {"x": x})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent = [e["dur"] for e in events if e.get("args", {}).get("op_name") == "Conv"]
    return float(np.median(spent[1:])) / 1000


def _in_openvino(shape: LayerShape, inputs: int, outputs: int, device: torch.device) -> float:
    """Take the time of the convolution from OpenVINO's profile."""
    library = require("openvino", "openvino")
    model, x = _onnx_layer(shape, inputs, outputs)
    core = library.Core()
    settings = {
        "PERF_COUNT": True,
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()
    samples = []
    for _ in range(_RUNS + 1):
        request.infer([x])
        spent = [i.real_time for i in request.profiling_info if "Convolution" in i.node_type]
        samples.append(sum(s.total_seconds() for s in spent) * 1000)
    return float(np.median(samples[1:]))


_TIMERS: dict[str, Callable[[LayerShape, int, int, torch.device], float]] = {
    "pytorch": _in_pytorch,
    "compile": _in_pytorch,
    "onnxruntime": _in_onnxruntime,
    "openvino": _in_openvino,
}


# --- the cache --------------------------------------------------------------------------------------------------------


def _key(shape: LayerShape) -> str:
    return json.dumps(astuple(shape))


def _cache_file(runtime: str, place: str) -> Path:
    """Return the file for a runtime of this machine, its versions and the number of threads."""
    versions = [str(torch.__version__)]
    with contextlib.suppress(ModuleNotFoundError):
        versions.append(str(__import__(runtime).__version__))
    about = json.dumps([runtime, place, torch.get_num_threads(), *versions])
    return cache_folder() / f"layer-times-{runtime}-{hashlib.sha256(about.encode()).hexdigest()[:12]}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or one that cannot be read: measure again
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, known: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a folder that cannot be written only costs the next measurement
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(known))
