"""`slimilar export`: a model as ONNX, in int8 too, or as a file of PyTorch's."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.destination import file_for
from slimilar.cli.images import ImageReader
from slimilar.cli.known_names import DTYPES, check_one_of
from slimilar.cli.model_options import Dtype, ModelOptions
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, escape, less, percent
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.errors import InvalidInput, Option
from slimilar.utils.dataset_names import check_dataset

if TYPE_CHECKING:
    from slimilar.deploy.quantization import Quantised

_SUFFIXES = (".onnx", ".pt2", ".ts")  # what tells the format

_option = partial(typer.Option, rich_help_panel="int8")


@dataclass(frozen=True)
class Int8Options:
    """Quantisation of the exported file, and the images for it."""

    int8: Annotated[
        bool, _option("--int8", help="Quantise the ONNX file per channel. Needs --calibrate.")
    ] = False
    calibrate: Annotated[
        str | None,
        _option(
            help="Images to calibrate activation ranges: a folder, a .npz file, demo, cifar10.",
            metavar="IMAGES",
        ),
    ] = None
    images: Annotated[int, _option(help="Number of calibration images.", min=1, metavar="N")] = 256
    data: Annotated[
        str | None, _option(help="Measure accuracy before and after on these test images.", metavar="DATA")
    ] = None
    limit: Annotated[
        int | None, _option(help="Use only N images of --data, evenly spaced.", min=1, metavar="N")
    ] = None
    preprocessing: PreprocessingOptions = PreprocessingOptions()

    def check(self, out: Path, dtype: str | None) -> None:
        """Raise for options that do not go together, before any work."""
        if self.int8 and (self.calibrate is None or dtype is not None or out.suffix in (".pt2", ".ts")):
            raise InvalidInput(
                Option("int8"),
                " needs --calibrate IMAGES, an --out file that ends in .onnx, and no --dtype, got another combination",
            )
        if not self.int8 and (self.calibrate is not None or self.data is not None):
            raise InvalidInput("--calibrate and --data need --int8, got none; pass --int8, or leave them out")
        for named in filter(None, (self.calibrate, self.data)):
            check_dataset(named)


def export(
    model: options.Model,
    *,
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
    quantisation: Int8Options,
    source: ModelOptions,
    dtype: Dtype = None,
    force: options.Force = False,
    output: Output,
) -> None:
    """Export a model to ONNX, torch.export or TorchScript, and compare the outputs of the file with the model's.

    Batch norms are folded into convolutions. [bold]--dtype float16[/] writes half precision, [bold]--int8[/] quantises.

    Example: [bold]slimilar export small/model.safetensors -o small.onnx[/]
    """
    source.check(model)
    quantisation.check(out, dtype)
    if dtype is not None:
        check_one_of("dtype", dtype, DTYPES)
    if out.suffix not in _SUFFIXES:
        raise InvalidInput(Option("out"), f" must end in {', '.join(_SUFFIXES)}, got {out.name!r}")
    file = file_for(out, force=force)
    opened = source.open(model).placed("cpu", dtype)
    if file.suffix in (".pt2", ".ts"):
        return _torch_file(output, opened, file, fixed_batch)
    if not quantisation.int8:
        return _onnx_file(output, opened, file, fixed_batch)
    return _int8_file(output, opened, file, fixed_batch, quantisation)


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
    output: Output, opened: OpenedModel, out: Path, batch: int | None, quantisation: Int8Options
) -> None:
    from slimilar.deploy.onnx import export_onnx
    from slimilar.deploy.quantization import OnnxSession, quantise
    from slimilar.train import evaluate

    assert quantisation.calibrate is not None
    reader = ImageReader(output, opened, quantisation.preprocessing)
    images: Any = reader.calibration(quantisation.calibrate, quantisation.images).as_argument(False)
    test = (
        None if quantisation.data is None else reader.labelled(quantisation.data, "test", quantisation.limit)
    )
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
    _say_setting(output, done)
    if ratio.low > 1:
        output.note(
            "int8 is slower than float32 here: this CPU may lack int8 instructions; use the float32 file"
        )
    output.answer(
        {
            "file": str(done.path), "bytes": done.bytes, "float_bytes": size, "agreement": done.agreement,
            "error": done.error, "setting": str(done.setting), "images": done.images,
            "held_out": done.held_out,
            "divergence": {str(setting): value for setting, value in done.divergence.items()},
            "milliseconds": {"float": before.value, "int8": after.value},
            "accuracy": None if accuracy is None else {"float": accuracy[0], "int8": accuracy[1]},
        }
    )  # fmt: skip


def _say_setting(output: Output, done: Quantised) -> None:
    which = "held-out images" if done.held_out else "calibration images; pass more to hold some out"
    output.say(f"same prediction on {percent(done.agreement)} of {done.images} {which}")
    if len(done.divergence) > 1:
        tried = [[str(setting), f"{100 * value:.2g} %"] for setting, value in done.divergence.items()]
        output.table(["<int8 setting", "divergence from float32"], tried)
        output.say(f"chosen: {done.setting}, with the least divergence on these held-out images")
