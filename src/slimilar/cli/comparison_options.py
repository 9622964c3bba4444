"""What to compare, on which images, and with how many processes, as typed on the command line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from slimilar.cli import options
from slimilar.cli.known_names import AMP, RESIDUALS, check_criterion, check_one_of, check_recipe
from slimilar.cli.plan_options import Residual
from slimilar.cli.preprocessing_options import PreprocessingOptions
from slimilar.errors import InvalidInput

if TYPE_CHECKING:
    from slimilar.comparison import Terms
    from slimilar.train import Recipe

_IMAGES = 512  # for calibration, unless there are fewer


@dataclass(frozen=True)
class TermsOptions:
    """What all criteria have in common."""

    criteria: Annotated[
        str, typer.Option(help="Names separated by commas, or 'all'. See slimilar criteria.", metavar="A,B,C")
    ] = "all"
    flops: Annotated[
        str, typer.Option(help="Budgets separated by commas: shares or numbers.", metavar="BUDGETS")
    ] = "0.5"
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning; 0 for none.", min=0, metavar="N")] = 1
    reconstruction: Annotated[
        str,
        typer.Option(
            help="own (that of the criterion's paper), none, merge, mean, gaussian, least-squares, linear (least "
            "squares with --images, else gaussian), auto; separated by commas.",
            metavar="METHODS",
        ),
    ] = "own"
    sparse_epochs: Annotated[
        int,
        typer.Option(
            help="Epochs of training before pruning, for criteria that need it.", min=0, metavar="N"
        ),
    ] = 1
    plain_epochs: Annotated[
        bool,
        typer.Option(
            "--plain-epochs",
            help="Train for the other criteria equally long before pruning, without a penalty.",
        ),
    ] = False
    recipe: options.RecipeName = "quick"
    lr: options.Rate = None
    amp: options.Amp = "auto"
    images: Annotated[
        int | None,
        typer.Option(
            help="Number of training images for calibration. Default: 512, or all if there are fewer.",
            metavar="N",
        ),
    ] = None
    residual: Residual = "inner"
    seed: Annotated[str, typer.Option(help="Seeds separated by commas.", metavar="SEEDS")] = "0"
    keep: Annotated[bool, typer.Option("--keep", help="Keep the pruned networks.")] = False

    def check(self, *sources: str | None) -> None:
        """Raise for names that are misspelt, given where the model comes from; needs no torch."""
        check_one_of("residual", self.residual, RESIDUALS)
        check_recipe(self.recipe)
        check_one_of("amp", self.amp, AMP)
        for name in () if self.criteria == "all" else _words(self.criteria, "criteria"):
            check_criterion(name, *sources)

    def terms(self) -> Terms:
        """Return the terms; raise for what is misspelt."""
        from slimilar.cli.training_run import precision_of
        from slimilar.comparison import Terms
        from slimilar.criteria import available

        return Terms(
            available() if self.criteria == "all" else _words(self.criteria, "criteria"),
            flops=_words(self.flops, "flops"),
            substitutes=_words(self.reconstruction, "reconstruction"),
            seeds=_numbers(self.seed),
            epochs=self.epochs,
            recipe=self._recipe(),
            sparse_epochs=self.sparse_epochs,
            plain_epochs=self.plain_epochs,
            residual=self.residual,  # type: ignore[arg-type]
            keep=self.keep,
            images=_IMAGES if self.images is None else self.images,
            precision=precision_of(self.amp),
        )

    def fitting(self, terms: Terms, count: int) -> Terms:
        """Return terms that ask for no more calibration images than there are, unless their number was given."""
        return terms if self.images is not None else dataclasses.replace(terms, images=min(_IMAGES, count))

    def _recipe(self) -> Recipe:
        from slimilar.train import recipe

        return (
            recipe(self.recipe) if self.lr is None else dataclasses.replace(recipe(self.recipe), lr=self.lr)
        )


@dataclass(frozen=True)
class SubjectOptions:
    """The images to train, calibrate and test on."""

    data: options.Data = "demo"
    train_images: Annotated[
        int | None, typer.Option(help="Train on N images, evenly spaced.", min=2, metavar="N")
    ] = None
    test_images: Annotated[
        int | None, typer.Option(help="Test on N images, evenly spaced.", min=2, metavar="N")
    ] = None
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Test on N training images that are excluded from training, for validation.",
            min=2,
            metavar="N",
        ),
    ] = None
    preprocessing: PreprocessingOptions = PreprocessingOptions()


@dataclass(frozen=True)
class WorkerOptions:
    """Who does the work."""

    jobs: Annotated[int, typer.Option(help="Number of processes.", min=1, metavar="N")] = 1
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of each process. Default: an equal share of the cores.", min=1, metavar="N"
        ),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray: a Ray cluster whose machines share the output folder.", metavar="NAME"
        ),
    ] = "local"


def _words(text: str, name: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise InvalidInput(f"--{name} must name at least one, got {text!r}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text, "seed"))
    except ValueError as error:
        raise InvalidInput(f"--seed must be whole numbers separated by commas, got {text!r}") from error
