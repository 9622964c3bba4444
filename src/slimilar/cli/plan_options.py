"""Which channels leave, and which images say so, as typed on the command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.known_names import LINKAGES, RESIDUALS, check_criterion, check_one_of
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.utils.dataset_names import check_dataset

if TYPE_CHECKING:
    from slimilar.planning.target import TargetKind

_channels = partial(typer.Option, rich_help_panel="Which channels to remove")
_calibration = partial(typer.Option, rich_help_panel="Calibration and reconstruction")

Residual = Annotated[
    str,
    _channels(
        help="inner: inside residual blocks only; select: pre-activation blocks select from the residual stream; "
        "joint: the stream too; auto: the stream too, if that costs less on held-out images.",
        metavar="MODE",
    ),
]

Reconstruction = Annotated[
    str,
    _calibration(
        help="How the consumers of removed channels are adapted: none, merge, mean, gaussian, least-squares "
        "(with --calibrate), or auto: least-squares with images, gaussian without.",
        metavar="METHOD",
    ),
]


@dataclass(frozen=True)
class PlanOptions:
    """The options that decide on a plan."""

    criterion: Annotated[
        str,
        _channels(
            help="similarity (the paper), span (least change of the output; needs --calibrate), auto (span for a "
            "budget with 16 images or more, else similarity), ... See slimilar criteria.",
            metavar="NAME",
        ),
    ] = "similarity"
    trained: Annotated[
        bool,
        _channels(
            "--trained",
            help="The criterion's training phase was run outside of slimilar train --for.",
        ),
    ] = False
    residual: Residual = "inner"
    linkage: Annotated[str, _channels(help="average, complete or single.", metavar="NAME")] = "average"
    exclude: Annotated[
        tuple[str, ...], _channels(help="Do not prune this module. Repeatable.", metavar="NAME")
    ] = ()
    min_channels: Annotated[
        int,
        _channels(
            help="Every layer keeps at least this many channels; 0 allows whole residual branches to be removed.",
            min=0,
            metavar="N",
        ),
    ] = 1
    calibrate: Annotated[
        str | None,
        _calibration(
            help="Calibration images: a folder, a .npz file (array x_train, images or x; for a model with several "
            "inputs input_0, input_1, ...), cifar10, demo; or 'synthesize' to generate them from the model's batch "
            "norms. Labels "
            "are only used by criteria that need them.",
            metavar="IMAGES",
        ),
    ] = None
    images: Annotated[
        int | None,
        _calibration(
            help="Number of calibration images. Default: 512, or 768 synthesised ones.", min=1, metavar="N"
        ),
    ] = None
    preprocessing: PreprocessingOptions = PreprocessingOptions()
    seed: options.Seed = 0

    def __post_init__(self) -> None:
        check_one_of("residual", self.residual, RESIDUALS)
        check_one_of("linkage", self.linkage, LINKAGES)

    def check(self, *sources: str | None) -> None:
        """Raise for a criterion or images that are not there, given where the model comes from."""
        check_criterion(self.criterion, *sources)
        if self.calibrate not in (None, "synthesize"):
            check_dataset(self.calibrate)

    def settled(self, images: int, target: TargetKind | None = None) -> PlanOptions:
        """Return them with what criterion "auto" stands for, given how many images were read."""
        if self.criterion != "auto":
            return self
        from slimilar.criteria import automatic

        return replace(self, criterion=automatic(images, target))

    def words(self) -> str:
        """Return them as on a command line, without those that have their default.

        With images, prune would choose another criterion by itself, so that the name is given.

        >>> PlanOptions(trained=True, exclude=("a", "b"), min_channels=4).words()
        '--trained --exclude a --exclude b --min-channels 4'
        """
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        changed += ["criterion"] if self.calibrate is not None and "criterion" not in changed else []
        return " ".join(word for name in changed for word in _words(name, getattr(self, name)))


def _words(name: str, value: Any) -> list[str]:
    """Return an option and its value as on a command line."""
    if isinstance(value, PreprocessingOptions):
        return value.words()
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    return [f"{option} {shlex.quote(str(v))}" for v in (value if isinstance(value, tuple) else (value,))]
