"""Calibration samples of a model with several inputs: a .npz file with an array for each."""

from __future__ import annotations

import inspect
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli.model_source import OpenedModel
from slimilar.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn


def several_inputs(path: Path, opened: OpenedModel, limit: int) -> tuple[Tensor, ...]:
    """Return samples of a file, taken evenly, input by input, as floats that are ready for the model."""
    import numpy as np
    import torch

    from slimilar.utils.sampling import taken_evenly

    count = len(opened.shapes)
    if path.suffix != ".npz":
        raise InvalidInput(
            f"--calibrate of a model with {count} inputs must be a .npz file with an array for each, got {path}"
        )
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            held = {name: taken_evenly(arrays[name], limit) for name in _names(path, opened, arrays)}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"{path} must be a complete .npz file without pickles, but: {error}") from error
    for (name, array), shape in zip(held.items(), opened.shapes, strict=True):
        if array.dtype.kind != "f" or array.shape[1:] != shape:
            wanted = "x".join(map(str, shape))
            raise DataError(
                f"{path} must hold floats of shape Nx{wanted} in {name}, ready for the model, but holds "
                f"{array.dtype} of shape {'x'.join(map(str, array.shape))}"
            )
    if len({len(array) for array in held.values()}) != 1:
        raise DataError(
            f"{path} must hold as many samples of each input, but holds {list(map(len, held.values()))}"
        )
    return tuple(torch.from_numpy(array).float() for array in held.values())


def _names(path: Path, opened: OpenedModel, arrays: Any) -> list[str]:
    """Return the arrays of the inputs, in their order: by the model's names for them, or by number."""
    count = len(opened.shapes)
    parameters = _input_names(opened.model)[:count]
    numbered = [f"input_{i}" for i in range(count)]
    for names in (parameters, numbered):
        if len(names) == count and all(name in arrays for name in names):
            return names
    raise DataError(
        f"{path} must hold the arrays {', '.join(numbered)}, or {', '.join(parameters)}, one for each input of the "
        f"model, but holds {', '.join(arrays) or 'none'}"
    )


def _input_names(model: nn.Module) -> list[str]:
    """Return the names of forward's parameters, or those that an ONNX file gives its inputs."""
    from slimilar.deploy.onnx_files.module import OnnxModule

    if isinstance(model, OnnxModule):
        return [given.name for given in model.source.inputs]
    return list(inspect.signature(model.forward).parameters)
