"""Whether a file normalises its images itself, and from which range."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from slimilar.deploy.onnx_files.module import Layer, OnnxModule

_SHIFTS = ("Sub", "Add", "Mul", "Div", "BatchNormalization")
_BYTES = 2.0  # a shift or divisor beyond it is meant for pixels from 0 to 255


def own_normalisation(module: OnnxModule) -> Literal["unit", "bytes"] | None:
    """Return the range of pixels that a file with its own normalisation takes; None if it has none.

    A file normalises its images if the first operator behind the input, transposes aside, shifts or scales them by
    constants.
    """
    name = module.source.inputs[0].name
    for step in module.source.steps:
        if name not in step.inputs:
            continue
        layer = module.get_submodule(step.layer)
        kind = _kind(module, step.node)
        if kind in ("Transpose", "Identity", "Cast"):
            name = step.outputs[0]
            continue
        return _range(layer) if kind in _SHIFTS and len(step.inputs) == 1 else None
    return None


def _kind(module: OnnxModule, node: int) -> str:
    return module.source.kinds[node]


def _range(layer: nn.Module) -> Literal["unit", "bytes"]:
    if isinstance(layer, Layer):
        numbers = [abs(x) for x in layer.operands if isinstance(x, float)]
        numbers += [float(t.abs().max()) for t in layer.buffers()]
        small = [n for n in numbers if 0 < n < 1 / 64]  # pixels are multiplied by 1 / 255
    else:
        mean = getattr(layer, "running_mean", None)
        numbers = [float(mean.abs().max())] if isinstance(mean, torch.Tensor) else []
        small = []
    return "bytes" if small or max(numbers, default=0.0) > _BYTES else "unit"
