"""The options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "Model"
TARGET = "How far to prune (exactly one of the first seven)"
CHANNELS = "Which channels leave"
CALIBRATION = "Calibration and reconstruction"
PREPROCESSING = "Preprocessing of images"

# --- the model ------------------------------------------------------------------------------------------------

Model = Annotated[
    str,
    typer.Argument(
        help="torchvision:NAME, timm:NAME, slimilar:NAME (with options: slimilar:vgg16,classes=100), a saved "
        ".safetensors file, an .onnx file, or path/file.py:function.",
        show_default=False,
        metavar="MODEL",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="File of weights (safetensors or torch.save), or 'default': the library's own, downloaded.",
        metavar="FILE",
        rich_help_panel=MODEL,
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        help="Shape of one input, such as 3x224x224. Repeat it for more inputs.",
        metavar="SHAPE",
        rich_help_panel=MODEL,
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="The unpruned model of a saved file, if it lives in a Python file: path/file.py:function.",
        metavar="MODEL",
        rich_help_panel=MODEL,
    ),
]

Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps, xpu.",
        metavar="NAME",
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Precision of the model: float32, float16, bfloat16 or float64. Default: as it is.",
        metavar="NAME",
        rich_help_panel=MODEL,
    ),
]
Amp = Annotated[
    str,
    typer.Option(help="Mixed precision: off, float16, bfloat16, or auto (on CUDA devices).", metavar="NAME"),
]

# --- how far to prune -----------------------------------------------------------------------------------------

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", "-t", help="Merge channels closer than this, from 0 to 1.", metavar="T", rich_help_panel=TARGET
    ),
]  # fmt: skip
Flops = Annotated[
    str | None,
    typer.Option(
        help="Budget of FLOPs: a share (0.5, 50%) or a number (4.1G).", metavar="BUDGET", rich_help_panel=TARGET
    ),
]  # fmt: skip
Macs = Annotated[
    str | None,
    typer.Option(help="Budget of multiply-adds, likewise.", metavar="BUDGET", rich_help_panel=TARGET),
]
Params = Annotated[
    str | None,
    typer.Option(help="Budget of parameters, likewise (10M).", metavar="BUDGET", rich_help_panel=TARGET),
]
Latency = Annotated[
    str | None,
    typer.Option(
        help="Budget of time measured on this machine: a share (0.5) or a time (12ms).",
        metavar="BUDGET",
        rich_help_panel=TARGET,
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        help="Share of its channels that every layer loses.", metavar="SHARE", rich_help_panel=TARGET
    ),
]
Quantile = Annotated[
    float | None,
    typer.Option(
        help="Share of all channels that leaves, in the criterion's order.", metavar="SHARE", rich_help_panel=TARGET
    ),
]  # fmt: skip
Runtime = Annotated[
    str,
    typer.Option(
        help="What --latency is measured with: pytorch, compile, onnxruntime, openvino or tensorrt.",
        metavar="NAME",
        rich_help_panel=TARGET,
    ),
]
RuntimeThreads = Annotated[
    int | None,
    typer.Option(
        "--threads", help="Threads of --runtime. Default: all cores.", min=1, metavar="N", rich_help_panel=TARGET
    ),
]  # fmt: skip
RuntimeBatch = Annotated[
    int | None,
    typer.Option("--batch", help="Batch size of --latency. Default: 1.", min=1, metavar="N", rich_help_panel=TARGET),
]  # fmt: skip
RoundTo = Annotated[
    str,
    typer.Option(
        help="Make widths multiples of this, which run faster; 1: any width. Auto: 16, less in narrow layers.",
        metavar="N",
        rich_help_panel=TARGET,
    ),
]
Layer = Annotated[
    list[str] | None,
    typer.Option(
        help="Threshold for one layer; 0 keeps it whole. Repeatable.", metavar="NAME=T", rich_help_panel=TARGET
    ),
]  # fmt: skip

# --- which channels -------------------------------------------------------------------------------------------

Criterion = Annotated[
    str,
    typer.Option(
        help="similarity (the paper), span (least change of the output; needs --calibrate), auto (span for a budget "
        "with 16 images or more, else similarity), ... See slimilar criteria.",
        metavar="NAME",
        rich_help_panel=CHANNELS,
    ),
]
Trained = Annotated[
    bool,
    typer.Option(
        "--trained",
        help="The weights went through the criterion's training phase elsewhere than in slimilar train --for.",
        rich_help_panel=CHANNELS,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        help="Prune nothing inside this module. Repeatable.", metavar="NAME", rich_help_panel=CHANNELS
    ),
]
Residual = Annotated[
    str,
    typer.Option(
        help="inner: inside residual blocks only; select: pre-activation blocks select from the residual stream; "
        "joint: the stream too; auto: the stream too, where held-out images say that it costs less.",
        metavar="MODE",
        rich_help_panel=CHANNELS,
    ),
]
Linkage = Annotated[
    str, typer.Option(help="average, complete or single.", metavar="NAME", rich_help_panel=CHANNELS)
]
MinChannels = Annotated[
    int,
    typer.Option(
        help="Every layer keeps at least this many channels; with 0, residual branches may go altogether.",
        min=0,
        metavar="N",
        rich_help_panel=CHANNELS,
    ),
]

# --- images ---------------------------------------------------------------------------------------------------

Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Calibration images: a folder, a .npz file (array x_train, images or x), cifar10, demo; "
        "or 'synthesize': made from the model's batch norms. Labels are used only by criteria that follow the loss.",
        metavar="IMAGES",
        rich_help_panel=CALIBRATION,
    ),
]
Images = Annotated[
    int | None,
    typer.Option(
        help="How many calibration images. Default: 512, or 768 synthesised ones.",
        min=1,
        metavar="N",
        rich_help_panel=CALIBRATION,
    ),
]
Normalise = Annotated[
    str,
    typer.Option(
        help="How pixels are normalised: auto (what was saved with the model, what its library publishes, or what its "
        "dataset uses), raw, imagenet, cifar10 or cifar100.",
        metavar="HOW",
        rich_help_panel=PREPROCESSING,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        help="Mean of each channel, of pixels from 0 to 1: 0.5,0.5,0.5. With --std, in place of --normalise.",
        metavar="NUMBERS",
        rich_help_panel=PREPROCESSING,
    ),
]
Std = Annotated[
    str | None,
    typer.Option(
        help="Standard deviation of each channel.", metavar="NUMBERS", rich_help_panel=PREPROCESSING
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        help="Scale the shorter side of image files to N pixels, or the whole image to HxW. Default: 256/224 of the "
        "input; files that have the input's size are taken as they are.",
        metavar="SIZE",
        rich_help_panel=PREPROCESSING,
    ),
]
Crop = Annotated[
    str | None,
    typer.Option(
        help="Then keep the middle of N pixels, or HxW. Default: the input's size.",
        metavar="SIZE",
        rich_help_panel=PREPROCESSING,
    ),
]
Reconstruction = Annotated[
    str,
    typer.Option(
        help="How the consumers of removed channels make up for them: none, merge, mean, linear, or auto (linear; "
        "best with --calibrate).",
        metavar="METHOD",
        rich_help_panel=CALIBRATION,
    ),
]

# --- training and measuring -----------------------------------------------------------------------------------

Data = Annotated[
    str,
    typer.Option(
        help="demo, cifar10, cifar100, a folder with train and test inside (one folder for each class), or a .npz "
        "file with x_train, y_train, x_test, y_test (bytes N x H x W x C, whole numbers).",
        metavar="DATA",
    ),
]
TrainingData = Annotated[
    str | None,
    typer.Option(
        help="A folder with train and test inside (one folder for each class), a .npz file with x_train, y_train, "
        "x_test, y_test (bytes N x H x W x C, whole numbers), cifar10, cifar100 or demo. Default: cifar10 in the "
        "folder SLIMILAR_DATA.",
        metavar="DATA",
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only the first N images.", min=1, metavar="N")]
Epochs = Annotated[
    int | None, typer.Option(help="Number of epochs, in place of the recipe's.", min=1, metavar="N")
]
Rate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate, in place of the recipe's.", metavar="RATE")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")]
Force = Annotated[bool, typer.Option("--force", help="Replace results that are in the folder.")]
Threads = Annotated[
    int | None, typer.Option(help="Threads of PyTorch. Default: all cores.", min=1, metavar="N")
]

# --- output ---------------------------------------------------------------------------------------------------

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", metavar="DIR")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, metavar="N")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
