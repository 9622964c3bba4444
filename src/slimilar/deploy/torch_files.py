"""Files for PyTorch's own runtimes: `torch.export` programs (.pt2) and TorchScript (.ts), compared with the model."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.errors import SlimilarError, VerificationError
from slimilar.utils.atomic import write_bytes
from slimilar.utils.modules import check_model, copy_with
from slimilar.utils.pytree import Example, arguments, tensors_in

TOLERANCE = 1e-4  # relative to the largest value: the same kernels, in an order that may differ
Saver = Callable[[nn.Module, tuple[Tensor, ...], bool, io.BytesIO], None]
Loader = Callable[[io.BytesIO], Callable[..., Any]]


@dataclass(frozen=True)
class TorchFile:
    """A file of PyTorch's. `error` is the largest difference from the model, relative to the largest value."""

    path: Path
    bytes: int
    error: float


def _save_program(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: bool, file: io.BytesIO) -> None:
    batch = torch.export.Dim("batch", min=1, max=2**16)
    shapes = tuple({0: batch} for _ in inputs) if dynamic else None
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=shapes), file)


def _load_program(file: io.BytesIO) -> Callable[..., Any]:
    return torch.export.load(file).module()


def _save_script(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: bool, file: io.BytesIO) -> None:
    """Save a frozen trace: parameters are constants, and batch norms are folded into convolutions."""
    traced: Any = torch.jit.trace(model, inputs)
    torch.jit.save(torch.jit.freeze(traced), file)


def _load_script(file: io.BytesIO) -> Callable[..., Any]:
    loaded: Callable[..., Any] = torch.jit.load(file)
    return loaded


FORMATS: dict[str, tuple[Saver, Loader]] = {
    ".pt2": (_save_program, _load_program),
    ".ts": (_save_script, _load_script),
}


def export_torch(
    model: nn.Module, path: str | os.PathLike[str], example: Example, *, dynamic_batch: bool = True
) -> TorchFile:
    """Save a model, in evaluation mode, as what the file's suffix names: .pt2 or .ts."""
    path = Path(path).expanduser()
    save, load = FORMATS[path.suffix]
    copy, inputs, buffer = (
        copy_with(check_model(model), {}).eval().cpu(),
        _inputs(example, dynamic_batch),
        io.BytesIO(),
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about PyTorch's own internals
        try:
            save(copy, inputs, dynamic_batch, buffer)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SlimilarError(f"PyTorch could not write this model as {path.suffix}: {reason}") from error
        buffer.seek(0)
        worst = _difference(copy, load(buffer), inputs)
    write_bytes(path, buffer.getvalue())
    return TorchFile(path, len(buffer.getvalue()), worst)


def _inputs(example: Example, dynamic: bool) -> tuple[Tensor, ...]:
    """Return random inputs of the example's shapes; with batch size 2, because export treats 1 as a constant."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn((2, *t.shape[1:]) if dynamic else tuple(t.shape), generator=generator).to(t.dtype)
        for t in tensors_in(arguments(example))
    )


def _difference(model: nn.Module, loaded: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    wanted, given = (list(tensors_in(run(*inputs))) for run in (model, loaded))
    gaps = [
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for a, b in zip(wanted, given, strict=True)
    ]
    worst = max(gaps)
    if not worst < (TOLERANCE if wanted[0].dtype in (torch.float32, torch.float64) else 1e-2):
        raise VerificationError(
            f"the saved file must match the model, but differs by {worst:.2g} of the largest value; "
            "please report this model"
        )
    return worst
