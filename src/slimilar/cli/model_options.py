"""Which model, with which weights, and where it computes, as typed on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from slimilar.cli.known_names import DTYPES, check_one_of
from slimilar.cli.model_source import OpenedModel, check_names, open_model, open_models

_option = partial(typer.Option, rich_help_panel="Model")

Device = Annotated[
    str,
    _option(
        help="Where to compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps, xpu.",
        metavar="NAME",
    ),
]
Dtype = Annotated[
    str | None,
    _option(
        help="Precision of the model: float32, float16, bfloat16 or float64. Default: unchanged.",
        metavar="NAME",
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """What a model needs beside its name: weights, the shapes of its inputs, the code of a saved one."""

    weights: Annotated[
        str | None,
        _option(
            help="File of weights (safetensors or torch.save), or 'default' to download those of the library.",
            metavar="FILE",
        ),
    ] = None
    input: Annotated[
        tuple[str, ...],
        _option(
            help="Shape of one input without the batch, such as 3x224x224. Repeat it for several inputs.",
            metavar="SHAPE",
        ),
    ] = ()
    base: Annotated[
        str | None,
        _option(
            help="The unpruned model of a saved file, if it is defined in a Python file: path/file.py:function.",
            metavar="MODEL",
        ),
    ] = None

    def check(self, *names: str) -> None:
        """Raise for names and files that are not there; open() does so too, but needs torch afterwards."""
        check_names(names, self.weights, self.base)

    def open(self, name: str) -> OpenedModel:
        """Return the model of a name."""
        return open_model(name, self.weights, self.input, self.base)

    def open_all(self, names: Sequence[str]) -> dict[str, OpenedModel]:
        """Return several models by name."""
        return open_models(names, self.weights, self.input, self.base)


@dataclass(frozen=True)
class Placement:
    """Where a model computes, and in which precision."""

    device: Device = "auto"
    dtype: Dtype = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            check_one_of("dtype", self.dtype, DTYPES)

    def of(self, opened: OpenedModel) -> OpenedModel:
        """Return a model there."""
        return opened.placed(self.device, self.dtype)
