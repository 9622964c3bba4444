"""The options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="torchvision:NAME, timm:NAME, slimilar:NAME (options follow: slimilar:vgg16,classes=100), a saved "
        ".safetensors file, or path/file.py:function.",
        show_default=False,
        metavar="MODEL",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="A file of weights (safetensors, or what torch.save wrote), or 'default': the library's own, downloaded.",
        metavar="FILE",
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(help="Shape of one input, such as 3x224x224; repeat it for more inputs.", metavar="SHAPE"),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="For a saved file that does not name its model: the unpruned model, such as path/file.py:function.",
        metavar="MODEL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Seed = Annotated[int, typer.Option(help="For everything random.", min=0)]
Threads = Annotated[int | None, typer.Option(help="Threads of PyTorch; all cores by default.", min=1)]

Threshold = Annotated[
    float | None,
    typer.Option("--threshold", "-t", help="Merge channels that are nearer than this, from 0 to 1."),
]
Flops = Annotated[
    str | None, typer.Option(help="Budget: a share (0.5, 50%) or a number (4.1G).", metavar="BUDGET")
]
Macs = Annotated[str | None, typer.Option(help="Budget of multiply-adds.", metavar="BUDGET")]
Params = Annotated[str | None, typer.Option(help="Budget of parameters, such as 10M.", metavar="BUDGET")]
Latency = Annotated[
    str | None,
    typer.Option(
        help="Budget of time measured on this machine: a share (0.5) or a time (12ms).", metavar="BUDGET"
    ),
]
RoundTo = Annotated[
    int, typer.Option(help="Keep widths at multiples of this, by undoing the costliest merges.", min=1)
]
Layer = Annotated[
    list[str] | None,
    typer.Option(help="A threshold of its own for a layer; 0 keeps it whole. Repeatable.", metavar="NAME=T"),
]
Exclude = Annotated[list[str] | None, typer.Option(help="Leave a module whole. Repeatable.", metavar="NAME")]
Residual = Annotated[
    str,
    typer.Option(
        help="inner: inside blocks only; select: pre-activation blocks choose from the stream; joint: the stream too.",
    ),
]
Linkage = Annotated[str, typer.Option(help="average, complete or single.")]
MinChannels = Annotated[int, typer.Option(help="Channels that every layer keeps at least.", min=1)]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", metavar="DIR")]

Criterion = Annotated[
    str,
    typer.Option(
        help="Which channels leave: similarity (the paper), span (by what the output feels; needs --calibrate), "
        "auto: span for a budget with 32 images or more, else similarity. slimilar criteria lists all.",
    ),
]
Trained = Annotated[
    bool,
    typer.Option(
        "--trained",
        help="The weights went through the training phase of slimming, structured-sparsity or soft, elsewhere than in "
        "slimilar train --for.",
    ),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Images: a folder, a .npz file, cifar10, demo; or 'synthesize': made from the model itself. Labels are "
        "looked at by criteria that follow the loss alone.",
        metavar="MAX_IMAGES",
    ),
]
Images = Annotated[
    int | None, typer.Option(help="How many of them: 512 unless told, 768 where they are synthesised.", min=1)
]
Substitute = Annotated[
    str,
    typer.Option(
        help="What consumers of removed channels do instead: none, merge, mean, linear (best with --calibrate), auto."
    ),
]
Normalise = Annotated[
    str,
    typer.Option(
        help="What the model expects of images: auto, raw, imagenet, cifar10 or cifar100.", metavar="HOW"
    ),
]
