"""How far to prune, as typed on the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli.known_names import RUNTIMES, check_one_of
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.deploy.runtimes import Runtime
    from slimilar.planning.rounding import RoundTo
    from slimilar.planning.target import PruningTarget

_option = partial(typer.Option, rich_help_panel="How far to prune (exactly one of the first seven)")
_budget = partial(_option, metavar="BUDGET")
_share = partial(_option, metavar="SHARE")


@dataclass(frozen=True)
class TargetOptions:
    """A threshold, a budget or a share of the channels; and what holds beside it."""

    threshold: Annotated[
        float | None,
        _option(
            "--threshold",
            "-t",
            help="Remove channels whose height (for similarity: distance) is below this, from 0 to 1.",
            metavar="T",
        ),
    ] = None
    flops: Annotated[str | None, _budget(help="FLOPs budget: a share (0.5, 50%) or a number (4.1G).")] = None
    macs: Annotated[str | None, _budget(help="Budget of multiply-adds: a share or a number.")] = None
    params: Annotated[str | None, _budget(help="Parameter budget: a share or a number (10M).")] = None
    latency: Annotated[
        str | None, _budget(help="Latency budget, measured on this machine: a share (0.5) or a time (12ms).")
    ] = None
    ratio: Annotated[float | None, _share(help="Share of the channels to remove from every layer.")] = None
    quantile: Annotated[
        float | None, _share(help="Share of all channels to remove, in the criterion's order.")
    ] = None
    round_to: Annotated[
        str,
        _option(
            help="Round widths to multiples of this number, which run faster. 1: any width; auto: 16, or less in "
            "narrow layers; "
            "measure: the multiple that is fast in --runtime on this machine.",
            metavar="N",
        ),
    ] = "auto"
    layer: Annotated[
        tuple[str, ...],
        _option(help="Threshold for one layer; 0 keeps all its channels. Repeatable.", metavar="NAME=T"),
    ] = ()
    runtime: Annotated[
        str,
        _option(
            help="Runtime for --latency and --round-to measure: pytorch, compile, onnxruntime, openvino or tensorrt.",
            metavar="NAME",
        ),
    ] = "pytorch"
    threads: Annotated[
        int | None, _option(help="Threads of --runtime. Default: all cores.", min=1, metavar="N")
    ] = None
    batch: Annotated[int | None, _option(help="Batch size of --latency. Default: 1.", min=1, metavar="N")] = (
        None
    )

    def __post_init__(self) -> None:
        check_one_of("runtime", self.runtime, RUNTIMES)

    def where(self) -> Runtime:
        """Return where a latency is measured."""
        from slimilar.deploy.runtimes import Runtime

        return Runtime(self.runtime, self.threads, self.batch)

    def target(self) -> PruningTarget:
        """Return the target that they name; raise unless it is one."""
        from slimilar.planning.target import PruningTarget

        return PruningTarget.of(
            threshold=self.threshold, flops=self.flops, macs=self.macs, params=self.params, latency=self.latency,
            ratio=self.ratio, quantile=self.quantile, round_to=parse_rounding(self.round_to),
            thresholds=parse_layers(self.layer),
        )  # fmt: skip


def parse_rounding(text: str) -> RoundTo:
    """Return the multiple that --round-to names, "auto" or "measure".

    >>> parse_rounding("8"), parse_rounding("auto")
    (8, 'auto')
    """
    from slimilar.planning.rounding import check_rounding

    return check_rounding(int(text) if text.isdecimal() else text)


def parse_layers(layers: Sequence[str]) -> dict[str, float]:
    """Return thresholds by layer, out of NAME=T.

    >>> parse_layers(["features.conv1_1=0", "a=b=0.25"])
    {'features.conv1_1': 0.0, 'a=b': 0.25}
    """
    found = {}
    for entry in layers:
        name, _, value = entry.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not name or math.isnan(found[name]):
            raise InvalidInput(f"--layer must look like NAME=0.25, got {entry!r}")
    return found
