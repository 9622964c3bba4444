"""int8 by ONNX Runtime: static quantisation, per channel, of an exported ONNX file."""

from __future__ import annotations

import importlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.deploy.extras import require
from slimilar.deploy.latency import Timings, measure
from slimilar.deploy.onnx_session import session_options
from slimilar.errors import InvalidInput, Option
from slimilar.utils.atomic import replacing

MOST_IMAGES = 256  # ranges of activations settle long before


@dataclass(frozen=True, eq=False)
class Quantised:
    """A quantised file beside the float one it was made from, on the calibration images."""

    path: Path
    bytes: int
    agreement: float  # share of images for which both have the same largest output
    error: float  # mean difference of the outputs, relative to their mean size
    timings: Timings  # of "float" and "int8", in turn


class _Images:
    """What ONNX Runtime's calibration reads: one batch after another."""

    def __init__(self, name: str, images: Tensor, batch: int) -> None:
        self._batches: Iterator[Tensor] = iter(images.split(batch))
        self._name = name

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next batch by the input's name; None after the last."""
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch.numpy()}


class OnnxSession(nn.Module):
    """An ONNX file in ONNX Runtime that is called like a model of one input."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        runtime = require("onnxruntime")
        options = session_options()
        self.session = runtime.InferenceSession(
            file.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            raise InvalidInput(
                f"int8 needs a model with one input, got {len(inputs)}: {[i.name for i in inputs]}"
            )
        self.input = inputs[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return the first output."""
        found: NDArray[np.float32] = self.session.run(None, {self.input.name: images.cpu().numpy()})[0]
        return torch.from_numpy(found)


def quantise(
    source: str | os.PathLike[str], path: str | os.PathLike[str], images: Tensor, *, seconds: float = 2.0
) -> Quantised:
    """Write an int8 file of a float ONNX file, calibrated on images, and compare the two."""
    source, path = Path(source), Path(path).expanduser()
    if not len(images):
        raise InvalidInput(Option("calibrate"), " must have images for the ranges of activations, got none")
    require("onnx")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    prepare: Any = importlib.import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    before = OnnxSession(source)
    fixed = before.input.shape[0]
    batch = fixed if isinstance(fixed, int) else min(8, len(images))
    if len(images) < batch:
        raise InvalidInput(
            Option("calibrate"), f" must have at least the {batch} images of a fixed batch, got {len(images)}"
        )
    images = images[: len(images) - len(images) % batch][:MOST_IMAGES].float().cpu()
    with tempfile.TemporaryDirectory() as folder, replacing(path) as unfinished, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = Path(folder) / "ready.onnx"
        prepare(str(source), str(ready), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(ready), str(unfinished), _Images(before.input.name, images, batch), per_channel=True,
            quant_format=quantization.QuantFormat.QDQ, activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8, extra_options={"WeightSymmetric": True},
        )  # fmt: skip
        size = unfinished.stat().st_size
    return _compared(before, OnnxSession(path), path, size, images, batch, seconds)


def _compared(
    before: OnnxSession, after: OnnxSession, path: Path, size: int, images: Tensor, batch: int, seconds: float
) -> Quantised:
    wanted, given = (torch.cat([run(b) for b in images.split(batch)]) for run in (before, after))
    same = (wanted.flatten(1).argmax(1) == given.flatten(1).argmax(1)).float().mean()
    error = (wanted - given).abs().mean() / wanted.abs().mean().clamp_min(1e-12)
    one = images[: batch if isinstance(before.input.shape[0], int) else 1]
    timings = measure({"float": lambda: before(one), "int8": lambda: after(one)}, seconds=seconds)
    return Quantised(path, size, float(same), float(error), timings)
