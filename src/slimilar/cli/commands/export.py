"""`slimilar export`: a model as ONNX, in int8 too, or as a file of PyTorch's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.commands.prune import Data, Limit
from slimilar.cli.destination import file_for
from slimilar.cli.images import ImageReader
from slimilar.cli.model_source import OpenedModel, open_model
from slimilar.cli.output import Output, escape, less, percent
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.errors import InvalidInput, Option

if TYPE_CHECKING:
    from slimilar.deploy.quantization import Quantised

_INT8 = "int8"


def export(
    model: options.Model,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The file to write: .onnx, .pt2 (torch.export), .ts (TorchScript).",
            metavar="FILE",
        ),
    ] = Path("model.onnx"),
    fixed_batch: Annotated[
        int | None, typer.Option(help="Fix the batch size. Default: dynamic.", min=1, metavar="N")
    ] = None,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Quantise the ONNX file, per channel; needs --calibrate.", rich_help_panel=_INT8
        ),
    ] = False,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Images for the ranges of activations: a folder, a .npz file, demo, cifar10.",
            metavar="IMAGES",
            rich_help_panel=_INT8,
        ),
    ] = None,
    images: Annotated[
        int, typer.Option(help="How many of them.", min=1, metavar="N", rich_help_panel=_INT8)
    ] = 256,
    data: Data = None,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    dtype: options.Dtype = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a model to ONNX, torch.export or TorchScript, and compare its outputs with the model's.

    Batch norms are folded into convolutions. [bold]--dtype float16[/] writes half precision, [bold]--int8[/] quantises.

    Example: [bold]slimilar export small/model.safetensors -o small.onnx[/]
    """
    output = Output(json, quiet)
    _check(out, int8, calibrate, data, dtype)
    out = file_for(out)
    opened = open_model(model, weights, input, base).placed("cpu", dtype)
    if out.suffix in (".pt2", ".ts"):
        return _torch_file(output, opened, out, fixed_batch)
    if not int8:
        return _onnx_file(output, opened, out, fixed_batch)
    reader = ImageReader(output, opened, PreprocessingOptions(normalise, mean, std, resize, crop))
    assert calibrate is not None
    return _int8_file(output, opened, out, fixed_batch, reader, (calibrate, images), (data, limit))


def _check(out: Path, int8: bool, calibrate: str | None, data: str | None, dtype: str | None) -> None:
    """Raise for options that do not go together, before any work."""
    if int8 and (calibrate is None or dtype is not None or out.suffix in (".pt2", ".ts")):
        raise InvalidInput(
            Option("int8"),
            " must have --calibrate IMAGES, an .onnx file and no --dtype, got another combination",
        )
    if not int8 and (calibrate is not None or data is not None):
        raise InvalidInput("--calibrate and --data are for --int8, got no --int8: pass it, or leave them out")


def _torch_file(output: Output, opened: OpenedModel, out: Path, batch: int | None) -> None:
    from slimilar.deploy.torch_files import export_torch
    from slimilar.planning.cost import human

    with output.working("Exporting"):
        done = export_torch(opened.model, out, opened.example(batch or 1), dynamic_batch=batch is None)
    rows = [
        ["file", f"{escape(done.path)}, {human(done.bytes)}B"],
        ["largest difference", f"{done.error:.1g}"],
    ]
    output.table(["<", "<"], rows)
    output.answer({"file": str(done.path), "bytes": done.bytes, "error": done.error})


def _onnx_file(output: Output, opened: OpenedModel, out: Path, fixed_batch: int | None) -> None:
    from slimilar.deploy.onnx import export_onnx
    from slimilar.planning.cost import human

    with output.working("Exporting"):
        done = export_onnx(
            opened.model, out, opened.example(fixed_batch or 1), dynamic_batch=fixed_batch is None
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


def _int8_file(
    output: Output,
    opened: OpenedModel,
    out: Path,
    batch: int | None,
    reader: ImageReader,
    shown: tuple[str, int],
    tested: tuple[str | None, int | None],
) -> None:
    from slimilar.deploy.onnx import export_onnx
    from slimilar.deploy.quantization import OnnxSession, quantise
    from slimilar.train import evaluate

    images: Any = reader.calibration(*shown).as_argument(False)
    test = None if tested[0] is None else reader.labelled(tested[0], "test", tested[1])
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float.onnx"
        with output.working("Exporting"):
            size = export_onnx(
                opened.model, plain, opened.example(batch or 1), dynamic_batch=batch is None
            ).bytes
        with output.working("Quantising"):
            done = quantise(plain, out, images)
        accuracy = None
        if test is not None:
            with output.working("Measuring accuracy"):
                accuracy = tuple(evaluate(OnnxSession(file), test).accuracy for file in (plain, out))
    _show_int8(output, done, size, accuracy)


def _show_int8(output: Output, done: Quantised, size: int, accuracy: tuple[float, ...] | None) -> None:
    from slimilar.planning.cost import human

    before, after = (done.timings.milliseconds(name) for name in ("float", "int8"))
    ratio = done.timings.ratio("int8", "float")
    rows = [
        ["size", f"{human(size)}B", f"{human(done.bytes)}B", less(size, done.bytes)],
        ["time", f"{before.value:.3g} ms", f"{after.value:.3g} ms", less(1.0, ratio.value)],
    ]
    if accuracy is not None:
        change = f"{100 * (accuracy[1] - accuracy[0]):+.1f} points"
        rows.append(["accuracy", percent(accuracy[0]), percent(accuracy[1]), change])
    output.table(["<", "float32", "int8", ""], rows, str(done.path))
    output.say(f"the same largest output on {percent(done.agreement)} of the calibration images")
    if ratio.low > 1:
        output.note(
            "int8 is slower than float32 here: this processor may lack int8 instructions; keep the float file"
        )
    output.answer(
        {
            "file": str(done.path), "bytes": done.bytes, "float_bytes": size, "agreement": done.agreement,
            "error": done.error, "milliseconds": {"float": before.value, "int8": after.value},
            "accuracy": None if accuracy is None else {"float": accuracy[0], "int8": accuracy[1]},
        }
    )  # fmt: skip
