"""int8 by ONNX Runtime: static quantisation, per channel, of an exported ONNX file.

Ranges of activations and bias correction are chosen by comparing with the float network, on images that were not
calibrated with.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.calibration.divergence import divergence_by_image
from slimilar.deploy.activation_ranges import RULES, Activation, activations
from slimilar.deploy.bias_correction import correct_biases
from slimilar.deploy.extras import require
from slimilar.deploy.latency import Timings, measure
from slimilar.deploy.onnx_session import session_options
from slimilar.errors import InvalidInput, Option
from slimilar.utils.atomic import replacing

MOST_IMAGES = 256  # ranges of activations settle long before
_BATCH = 4  # images at once: all activations of a batch are in memory
_EVERY = 2  # one batch of so many is held out: ranges settle with few images, a comparison needs many


@dataclass(frozen=True)
class Setting:
    """How a file is quantised.

    >>> str(Setting("99.99 %", corrected=True))
    'ranges by 99.99 %, biases corrected'
    """

    ranges: str  # of activations: one of RULES
    corrected: bool = False  # the biases

    def __str__(self) -> str:
        return f"ranges by {self.ranges}{', biases corrected' * self.corrected}"


@dataclass(frozen=True, eq=False)
class Quantised:
    """A quantised file beside the float one it was made from, compared on images.

    These were held out; of a single batch none can be, and they are those that it was calibrated with.
    """

    path: Path
    bytes: int
    setting: Setting
    divergence: dict[Setting, float]  # from the float file, of all that were tried: the mean root over images
    images: int  # that both were compared on
    held_out: bool  # whether none of these was calibrated with
    agreement: float  # share of these for which both have the same largest output
    error: float  # mean difference of the outputs, relative to their mean size
    timings: Timings  # of "float" and "int8", in turn


class _Images:
    """What ONNX Runtime's calibration reads: one batch. The ranges come from elsewhere."""

    def __init__(self, name: str, batch: Tensor) -> None:
        self._batches: Iterator[Tensor] = iter([batch])
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
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    images: Tensor,
    *,
    ranges: str = "auto",
    seconds: float = 2.0,
) -> Quantised:
    """Write an int8 file of a float ONNX file, calibrated on images, and compare the two.

    Half of the images are held out. With `ranges="auto"`, every rule for the ranges of activations is tried, with and
    without bias correction. The file with the least divergence on these images is written: the mean of its square root,
    so that no single image decides. The name of a rule takes that one and leaves biases as they are, and so does a
    single batch of images, by min-max.
    """
    source, path = Path(source), Path(path).expanduser()
    if ranges not in ("auto", *RULES):
        raise InvalidInput(f"ranges must be one of {['auto', *RULES]}, got {ranges!r}")
    before = OnnxSession(source)
    fit, held = _split(images, before.input.shape[0])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = _Trial(before, source, Path(folder), fit, held)
        for setting in _settings(ranges, choose=bool(held)):
            trial.add(setting)
        with replacing(path) as unfinished:
            shutil.copyfile(trial.file(trial.best), unfinished)
    return _compared(trial, path, seconds)


def _settings(ranges: str, *, choose: bool) -> list[Setting]:
    if ranges != "auto":
        return [Setting(ranges)]
    return [Setting(rule, corrected) for corrected in (False, True) for rule in RULES][
        : None if choose else 1
    ]


def _split(images: Tensor, fixed: object) -> tuple[list[Tensor], list[Tensor]]:
    """Return batches to calibrate with, and those that are held out: none of a single batch."""
    if not len(images):
        raise InvalidInput(Option("calibrate"), " must have images for the ranges of activations, got none")
    batch = fixed if isinstance(fixed, int) else min(_BATCH, max(1, len(images) // _EVERY))
    if len(images) < batch:
        raise InvalidInput(
            Option("calibrate"), f" must have at least the {batch} images of a fixed batch, got {len(images)}"
        )
    images = images[:MOST_IMAGES] if batch <= MOST_IMAGES else images
    batches = list(images[: len(images) - len(images) % batch].float().cpu().split(batch))
    held = range(_EVERY - 1, len(batches), _EVERY) or range(1, len(batches))
    return [b for i, b in enumerate(batches) if i not in held], [batches[i] for i in held]


class _Trial:
    """int8 files of several settings, and how far their outputs are from the float file's."""

    def __init__(
        self, before: OnnxSession, source: Path, folder: Path, fit: Sequence[Tensor], held: Sequence[Tensor]
    ) -> None:
        require("onnx")
        prepare: Any = importlib.import_module("onnxruntime.quantization.shape_inference").quant_pre_process
        self.before, self.held_out, self._folder, self._shown = before, bool(held), folder, fit[0]
        self.compared = held or fit
        self._ready = folder / "ready.onnx"
        prepare(str(source), str(self._ready), skip_symbolic_shape=True)
        self._seen: dict[str, Activation] = activations(self._ready, fit)
        self.wanted = torch.cat([before(batch) for batch in self.compared])
        self.outputs: dict[Setting, Tensor] = {}
        self.divergence: dict[Setting, float] = {}

    @property
    def best(self) -> Setting:
        """The setting with the least divergence."""
        return min(self.divergence, key=lambda setting: self.divergence[setting])

    def file(self, setting: Setting) -> Path:
        """Return the file of a setting that was tried."""
        return self._folder / f"{list(RULES).index(setting.ranges)}-{setting.corrected}.onnx"

    def add(self, setting: Setting) -> None:
        """Quantise with a setting, and measure it."""
        _quantise(
            self._source(setting.corrected), self.file(setting), self._shown, self._ranges(setting.ranges)
        )
        after = OnnxSession(self.file(setting))
        self.outputs[setting] = torch.cat([after(batch) for batch in self.compared])
        found = divergence_by_image([self.outputs[setting]], [self.wanted])
        self.divergence[setting] = float(found.sqrt().mean())

    def _source(self, corrected: bool) -> Path:
        if not corrected:
            return self._ready
        file = self._folder / "corrected.onnx"
        correct_biases(self._ready, file, {name: seen.means for name, seen in self._seen.items()})
        return file

    def _ranges(self, rule: str) -> dict[str, Any]:
        found = ((name, RULES[rule](seen)) for name, seen in self._seen.items())
        return {name: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for name, (low, high) in found}


def _quantise(source: Path, path: Path, shown: Tensor, ranges: dict[str, Any]) -> None:
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    reader = _Images(OnnxSession(source).input.name, shown)
    quantization.quantize_static(
        str(source), str(path), reader, per_channel=True, quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        extra_options={"WeightSymmetric": True, "TensorQuantOverrides": ranges},
    )  # fmt: skip


def _compared(trial: _Trial, path: Path, seconds: float) -> Quantised:
    before, after, wanted, given = trial.before, OnnxSession(path), trial.wanted, trial.outputs[trial.best]
    same = (wanted.flatten(1).argmax(1) == given.flatten(1).argmax(1)).float().mean()
    error = (wanted - given).abs().mean() / wanted.abs().mean().clamp_min(1e-12)
    one = trial.compared[0] if isinstance(before.input.shape[0], int) else trial.compared[0][:1]
    timings = measure({"float": lambda: before(one), "int8": lambda: after(one)}, seconds=seconds)
    return Quantised(
        path, path.stat().st_size, trial.best, trial.divergence, len(wanted), trial.held_out, float(same),
        float(error), timings,
    )  # fmt: skip
