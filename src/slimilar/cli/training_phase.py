"""`slimilar train --for CRITERION`: the training phase of a criterion that has one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli.model_source import OpenedModel
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from slimilar.train import Hooks, Recipe

_option = partial(typer.Option, rich_help_panel="Training for a criterion")


@dataclass(frozen=True)
class PhaseOptions:
    """The options of a criterion's training phase, if there is to be one."""

    criterion: Annotated[
        str | None,
        _option(
            "--for",
            help="Run the training phase of slimming, structured-sparsity or soft, for slimilar prune --criterion.",
            metavar="CRITERION",
        ),
    ] = None
    flops: Annotated[
        str | None,
        _option(help="FLOPs budget of the pruning that follows; required by soft.", metavar="BUDGET"),
    ] = None
    strength: Annotated[
        float | None,
        _option(
            help="Strength of the penalty (lambda), in place of the criterion's default.", metavar="LAMBDA"
        ),
    ] = None
    residual: Annotated[
        str, _option(help="As in the pruning that follows: inner, select or joint.", metavar="MODE")
    ] = "inner"

    def hooks(self, opened: OpenedModel, recipe: Recipe) -> Hooks:
        """Return what the criterion does in training; nothing where there is no criterion."""
        from slimilar.criteria import training_hooks
        from slimilar.train import Hooks

        if self.criterion is None:
            given = [f"--{n}" for n in ("flops", "strength") if getattr(self, n) is not None]
            if given:
                raise InvalidInput(f"{given[0]} needs --for CRITERION, got none; pass both, or leave it out")
            return Hooks()
        if recipe.ema is not None:
            raise InvalidInput(
                "--for needs a recipe without averaged weights, which have no exact zeros, got ema "
                f"{recipe.ema:g}; choose another --recipe"
            )
        residual: Any = self.residual
        return training_hooks(
            self._made(self.criterion), opened.model, opened.example(), flops=self.flops, residual=residual
        )

    def _made(self, name: str) -> Any:
        from slimilar.criteria import available, facts, make

        made: Any = make(name)
        known = [n for n in available() if facts(n).needs == "training"]
        if name not in known:
            raise InvalidInput(
                f"--for must be one of {', '.join(known)}, got {name!r}, which needs no training"
            )
        if facts(name).per_budget and self.flops is None:
            raise InvalidInput(
                f"--for {name} needs the FLOPs budget of the pruning that follows, got none; pass --flops, such as 0.5"
            )
        if self.strength is None:
            return made
        if not hasattr(made, "strength"):
            raise InvalidInput(
                f"--strength only applies to criteria with a penalty, got --for {name}; leave it out"
            )
        return dataclasses.replace(made, strength=self.strength)

    def mark(self, model: nn.Module) -> None:
        """Let a trained model remember, also where a resumed run had nothing left to do."""
        from slimilar.criteria.base import mark_trained

        if self.criterion is not None:
            mark_trained(model, self.criterion)

    def next(self, file: object) -> str | None:
        """Return the command that comes next."""
        if self.criterion is None:
            return None
        residual = "" if self.residual == "inner" else f" --residual {self.residual}"
        return f"slimilar prune {file} --criterion {self.criterion} --flops {self.flops or 0.5}{residual}"
