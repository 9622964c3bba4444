"""`slimilar export`: a model as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimilar.cli import options
from slimilar.cli.destination import file_for
from slimilar.cli.model_options import Dtype, ModelOptions
from slimilar.cli.output import Output, escape


def export(
    model: options.Model,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")] = Path(
        "model.onnx"
    ),
    fixed_batch: Annotated[
        int | None, typer.Option(help="Fix the batch size. Default: dynamic.", min=1, metavar="N")
    ] = None,
    source: ModelOptions,
    dtype: Dtype = None,
    output: Output,
) -> None:
    """Export a model to ONNX, and compare its outputs with PyTorch's.

    Example: [bold]slimilar export small/model.safetensors -o small.onnx[/]
    """
    from slimilar.deploy.onnx import export_onnx
    from slimilar.planning.cost import human

    file = file_for(out)
    opened = source.open(model).placed("cpu", dtype)
    with output.working("Exporting"):
        done = export_onnx(
            opened.model, file, opened.example(fixed_batch or 1), dynamic_batch=fixed_batch is None
        )
    compared = "not compared: onnxruntime is not installed" if done.error is None else f"{done.error:.1g}"
    output.table(
        ["<", "<"],
        [
            ["file", f"{escape(done.path)}, {human(done.bytes)}B, opset {done.opset}"],
            ["largest difference from PyTorch", compared],
            ["batch size", "dynamic" if fixed_batch is None else str(fixed_batch)],
        ],
    )
    output.answer(
        {
            "file": str(done.path),
            "bytes": done.bytes,
            "opset": done.opset,
            "inputs": list(done.inputs),
            "outputs": list(done.outputs),
            "error": done.error,
        }
    )
