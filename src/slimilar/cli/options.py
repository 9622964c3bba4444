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
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
Threads = Annotated[int | None, typer.Option(help="Threads of PyTorch: all cores unless given.", min=1)]

_TARGET = "How far to prune: exactly one of these"
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", "-t", help="Merge channels closer than this, from 0 to 1.", rich_help_panel=_TARGET
    ),
]
Flops = Annotated[
    str | None,
    typer.Option(
        help="Budget of FLOPs: a share (0.5, 50%) or a number (4.1G).",
        metavar="BUDGET",
        rich_help_panel=_TARGET,
    ),
]
Macs = Annotated[
    str | None, typer.Option(help="Budget of multiply-adds.", metavar="BUDGET", rich_help_panel=_TARGET)
]
Params = Annotated[
    str | None,
    typer.Option(help="Budget of parameters, such as 10M.", metavar="BUDGET", rich_help_panel=_TARGET),
]
Latency = Annotated[
    str | None,
    typer.Option(
        help="Budget of time, measured on this machine: a share (0.5) or a time (12ms).", metavar="BUDGET",
        rich_help_panel=_TARGET,
    ),
]  # fmt: skip
Ratio = Annotated[
    float | None,
    typer.Option(help="Share of its channels that every layer loses.", rich_help_panel=_TARGET),
]
Quantile = Annotated[
    float | None,
    typer.Option(
        help="Share of all channels that leaves, those of least height first.", rich_help_panel=_TARGET
    ),
]
Runtime = Annotated[
    str, typer.Option(help="What --latency is measured with: pytorch, compile, onnxruntime or openvino.")
]
RoundTo = Annotated[
    int, typer.Option(help="Keep widths at multiples of this, by undoing the costliest merges.", min=1)
]
Layer = Annotated[
    list[str] | None,
    typer.Option(help="A threshold for one layer; 0 keeps it whole. Repeatable.", metavar="NAME=T"),
]
Exclude = Annotated[
    list[str] | None, typer.Option(help="Prune nothing inside this module. Repeatable.", metavar="NAME")
]
Residual = Annotated[
    str,
    typer.Option(
        help="inner: inside residual blocks only; select: pre-activation blocks select from the residual stream; "
        "joint: the stream too.",
    ),
]
Linkage = Annotated[str, typer.Option(help="average, complete or single.")]
MinChannels = Annotated[int, typer.Option(help="Every layer keeps at least this many channels.", min=1)]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", metavar="DIR")]

Criterion = Annotated[
    str,
    typer.Option(
        help="Which channels leave: similarity (the paper), span (least change of the output; needs --calibrate), "
        "auto (span for a budget with 32 images or more, else similarity). See slimilar criteria.",
    ),
]
Trained = Annotated[
    bool,
    typer.Option(
        "--trained",
        help="The weights went through the criterion's training phase (slimming, structured-sparsity, soft) elsewhere "
        "than in slimilar train --for.",
    ),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Calibration images: a folder, a .npz file, cifar10, demo; or 'synthesize': made from the model's batch "
        "norms. Labels are used only by criteria that follow the loss.",
        metavar="IMAGES",
    ),
]
Images = Annotated[
    int | None, typer.Option(help="How many calibration images: 512, or 768 synthesised ones.", min=1)
]
Reconstruction = Annotated[
    str,
    typer.Option(
        help="How the consumers of removed channels make up for them: none, merge, mean, linear, auto (linear; best "
        "with --calibrate)."
    ),
]
Normalise = Annotated[
    str,
    typer.Option(
        help="How images are normalised for the model: auto, raw, imagenet, cifar10 or cifar100.",
        metavar="HOW",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        help="demo, cifar10, cifar100, a .npz file, or a folder with train and test inside.", metavar="DATA"
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only the first images, this many.", min=1)]
Epochs = Annotated[int | None, typer.Option(help="Number of epochs, other than the recipe's.", min=1)]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate, other than the recipe's.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")]
