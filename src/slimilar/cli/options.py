"""Single options that several commands share, each described once. Groups of options are in `*_options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="torchvision:NAME, timm:NAME, slimilar:NAME (with options: slimilar:vgg16,classes=100), a saved "
        ".safetensors file, an .onnx file, or path/file.py:function.",
        show_default=False,
        metavar="MODEL",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        help="demo, cifar10, cifar100, a folder with train and test inside (one folder for each class), or a .npz "
        "file with x_train, y_train, x_test, y_test (bytes N x H x W x C, whole numbers).",
        metavar="DATA",
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only N images, evenly spaced.", min=1, metavar="N")]
Rate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate; overrides the recipe.", metavar="RATE")
]
RecipeName = Annotated[
    str,
    typer.Option(help="one-cycle, base, quick, paper-vgg, ...; a wrong name lists them.", metavar="NAME"),
]
Amp = Annotated[
    str,
    typer.Option(help="Mixed precision: off, float16, bfloat16, or auto (on CUDA devices).", metavar="NAME"),
]
Threads = Annotated[
    int | None, typer.Option(help="Threads of PyTorch. Default: all cores.", min=1, metavar="N")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", metavar="DIR")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing results.")]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, metavar="N")]
