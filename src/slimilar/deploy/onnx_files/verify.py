"""Compare a written ONNX model with the module it was written from, at every size that the file takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from slimilar.deploy.extras import require
from slimilar.deploy.onnx_files.module import OnnxInput, OnnxModule
from slimilar.deploy.onnx_files.precision import in_single_precision, is_half
from slimilar.deploy.onnx_files.reference import Array, relative_difference, relaxed, session
from slimilar.errors import VerificationError
from slimilar.utils.pytree import tensors_in

TOLERANCE = 1e-3  # relative to the largest value: runtimes sum in different orders
HALF_TOLERANCE = 3e-2  # of a file whose weights are rounded to half precision


def check_written(module: OnnxModule, model: Any) -> float:
    """Return the largest relative difference from PyTorch; raise if rounding cannot explain it."""
    source = module.source
    if is_half(model):
        session(model.SerializeToString())  # it has to open as it is, too
    opened = session(relaxed(in_single_precision(model)))
    fixed = source.inputs[0].declared[0]
    worst = 0.0
    for batch in [fixed] if fixed else [1, 3]:
        feeds = random_images(source.inputs, batch)
        try:
            found = opened.run(list(source.outputs), feeds)
        except Exception as error:
            raise VerificationError(
                f"the written model must run, but ONNX Runtime raised: {error}"
            ) from error
        with torch.no_grad():
            wanted = [t.numpy() for t in tensors_in(module(*map(torch.from_numpy, feeds.values())))]
        pairs = zip(wanted, found, strict=True)
        worst = max([worst, *(relative_difference(a, b) for a, b in pairs)])
    if not worst < (HALF_TOLERANCE if is_half(model) else TOLERANCE):
        raise VerificationError(
            f"the ONNX model must match PyTorch, but differs by {worst:.2g} of the largest value; "
            "please report this model"
        )
    _check_other_sizes(module, opened)
    return worst


def _check_other_sizes(module: OnnxModule, opened: Any) -> None:
    """Run the written model at another size, where the file leaves it open and the original runs there too."""
    source = module.source
    if not any(None in i.declared[1:] for i in source.inputs):
        return
    larger = tuple(
        OnnxInput(
            i.name, tuple(n * 2 if d is None else n for n, d in zip(i.shape, i.declared[1:], strict=True)), ()
        )
        for i in source.inputs
    )
    feeds, outputs = random_images(larger, 1), list(source.outputs)
    try:
        original = require("onnx").load_model_from_string(source.content)
        wanted = session(in_single_precision(original).SerializeToString()).run(outputs, feeds)
    except Exception:
        return  # the original does not run at this size either
    try:
        found = opened.run(outputs, feeds)
    except Exception as error:
        raise VerificationError(
            f"the written model must run at every size that the original takes, but raised: {error}"
        ) from error
    if [a.shape for a in wanted] != [b.shape for b in found]:
        raise VerificationError("the written model must have the original's output shapes at other sizes")


def random_images(inputs: tuple[OnnxInput, ...], batch: int) -> dict[str, Array]:
    """Return the same random numbers each time, by input."""
    random = np.random.default_rng(0)
    return {i.name: random.standard_normal((batch, *i.shape), np.float32) for i in inputs}
