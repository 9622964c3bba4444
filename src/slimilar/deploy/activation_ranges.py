"""Which range of an activation int8 covers: its values are recorded once, and rules choose a range from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_session import session_options

Floats = NDArray[Any]
Range = tuple[float, float]

_SAMPLES = 1 << 17  # values that are kept of an activation
_LEVELS = 255  # steps between the smallest and the largest number of 8 bits
_INSIDE = 0.9999  # share of the values
_SHARES = np.linspace(0.3, 1.0, 36)  # of the full range, that are tried for the least squared error


@dataclass(frozen=True, eq=False)
class Activation:
    """What was seen of a tensor: its extremes, a sample of its values, and the mean of each channel (axis 1)."""

    low: float
    high: float
    values: Floats
    means: Floats


def min_max(seen: Activation) -> Range:
    """Return everything that was seen.

    >>> min_max(Activation(-1.0, 3.0, np.zeros(2), np.zeros(1)))
    (-1.0, 3.0)
    """
    return seen.low, seen.high


def percentile(seen: Activation) -> Range:
    """Return what 99.99 % of the values are below, and above: a few outliers are clipped, the rest has finer steps."""
    low, high = np.quantile(seen.values, [1 - _INSIDE, _INSIDE])
    return float(low), float(high)


def least_error(seen: Activation) -> Range:
    """Return the share of the full range, zero included, with the least squared error of rounding and clipping.

    >>> values = np.append(np.linspace(0, 1, 100_000), 100.0)
    >>> least_error(Activation(0.0, 100.0, values, np.zeros(1))) < (0.0, 100.0)
    True
    """
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    errors = [_squared_error(seen.values, low * share, high * share) for share in _SHARES]
    best = float(_SHARES[int(np.argmin(errors))])
    return low * best, high * best


RULES: dict[str, Callable[[Activation], Range]] = {
    "min-max": min_max,
    "99.99 %": percentile,
    "least squared error": least_error,
}


def _squared_error(values: Floats, low: float, high: float) -> float:
    step = max(high - low, 1e-30) / _LEVELS
    zero = round(-low / step)
    rounded = np.clip(np.rint(values / step), -zero, _LEVELS - zero) * step
    return float(np.square(rounded - values).sum())


def activations(file: Path, batches: Sequence[Tensor]) -> dict[str, Activation]:
    """Return what all tensors of a float ONNX file hold while it runs over batches of images."""
    session, names = _session(file)
    entry = session.get_inputs()[0].name
    records = {name: _Record(_SAMPLES // len(batches) + 1) for name in (entry, *names)}
    for batch in batches:
        shown = {entry: batch.numpy()}
        for name, value in zip(names, session.run(names, shown), strict=True):
            records[name].add(value)
        records[entry].add(shown[entry])
    return {name: record.result() for name, record in records.items() if record.values}


def _session(file: Path) -> tuple[Any, list[str]]:
    """Return a session whose outputs are all tensors that nodes write, and their names."""
    model = require("onnx").load(file)
    known = {value.name for value in model.graph.output}
    written = [
        name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name
    ]
    for name in written:
        if name not in known:
            model.graph.output.add().name = name
    runtime = require("onnxruntime")
    content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    return runtime.InferenceSession(content, session_options(), providers=providers), written


class _Record:
    """The extremes, samples and channel means of one tensor, batch after batch; nothing of what has no such values."""

    def __init__(self, samples: int) -> None:
        self._samples, self._random = samples, np.random.default_rng(0)
        self.values: list[Floats] = []
        self._means: list[Floats] = []
        self._low, self._high = np.inf, -np.inf

    def add(self, value: Any) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != np.float32 or not value.size:
            return
        flat = value.reshape(-1)
        few = flat.size <= self._samples
        self.values.append(flat if few else flat[self._random.integers(0, flat.size, self._samples)])
        axes = tuple(axis for axis in range(value.ndim) if axis != 1)
        self._means.append(value.mean(axes, dtype=np.float64) if value.ndim > 1 else np.zeros(0))
        self._low, self._high = min(self._low, float(flat.min())), max(self._high, float(flat.max()))

    def result(self) -> Activation:
        alike = (
            len({mean.shape for mean in self._means}) == 1
        )  # not where the number of channels depends on images
        means = np.mean(self._means, axis=0) if alike else np.zeros(0)
        return Activation(self._low, self._high, np.concatenate(self.values), means)
