"""Accuracy before and after pruning, and fine-tuning in the same command."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli.images import ImageReader
from slimilar.cli.output import Output
from slimilar.cli.training_run import changed_recipe, shown
from slimilar.errors import InvalidInput
from slimilar.utils.dataset_names import check_dataset

if TYPE_CHECKING:
    from torch import nn

    from slimilar.data import ImageFiles, Images
    from slimilar.report import Point
    from slimilar.result import Result


_option = partial(typer.Option, rich_help_panel="Accuracy")


@dataclass(frozen=True)
class AccuracyOptions:
    """Labelled images to measure accuracy on, and to fine-tune with."""

    data: Annotated[
        str | None,
        _option(
            help="Measure accuracy before and after: demo, cifar10, a folder with train and test inside, a .npz file.",
            metavar="DATA",
        ),
    ] = None
    limit: Annotated[
        int | None, _option(help="Use only N images of --data, evenly spaced.", min=1, metavar="N")
    ] = None
    finetune: Annotated[
        int | None,
        _option(help="Then fine-tune on the training images of --data.", min=1, metavar="EPOCHS"),
    ] = None

    def check(self) -> None:
        """Raise for options that do not go together, before any work."""
        if self.finetune is not None and self.data is None:
            raise InvalidInput("--finetune needs images with labels, got none; pass --data")
        if self.data is not None:
            check_dataset(self.data)


@dataclass(frozen=True)
class MeasuredAccuracy:
    """Shares of the test images that are classified correctly; None where not measured."""

    before: float | None = None
    after: float | None = None
    finetuned: float | None = None
    images: int = 0

    def described(self) -> dict[str, Any]:
        """Return it for programs."""
        return {} if self.before is None else {"accuracy": asdict(self)}

    def points(self, result: Result) -> list[Point]:
        """Return marks for the report."""
        from slimilar.report import Point

        costs = result.cut.before.flops, result.cut.flops, result.cut.flops
        named = zip(
            ("original", "pruned", "fine-tuned"),
            costs,
            (self.before, self.after, self.finetuned),
            strict=True,
        )
        return [Point(name, cost, share) for name, cost, share in named if share is not None]


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The images that accuracy is measured on, and the accuracy of the model before it is pruned."""

    before: float
    test: Images | ImageFiles
    train: Images | ImageFiles | None
    original: nn.Module

    @classmethod
    def of(cls, reader: ImageReader, given: AccuracyOptions) -> Accuracy | None:
        """Measure the unpruned model, before anything takes long; None without data."""
        if given.data is None:
            return None
        test = reader.labelled(given.data, "test", given.limit)
        train = None if given.finetune is None else reader.labelled(given.data, "train", given.limit)
        model = reader.opened.model
        return cls(_score(reader.out, model, test, "the original"), test, train, model)

    def measured(
        self, out: Output, result: Result, epochs: int | None, calibrated: bool, seed: int
    ) -> tuple[Result, MeasuredAccuracy]:
        """Return the result, fine-tuned if epochs are given, and what was measured."""
        after = _score(out, result.model, self.test, "the pruned model")
        found = MeasuredAccuracy(self.before, after, images=len(self.test))
        if epochs is None or self.train is None:
            return result, found
        from slimilar.train import TrainingSettings, finetune

        recipe = changed_recipe("reconstructed" if calibrated else "quick", epochs, None)
        with out.working("Fine-tuning") as tell:
            trained = finetune(
                result.model, self.train, recipe, test=self.test, settings=TrainingSettings(seed=seed),
                teacher=self.original if calibrated else None, progress=shown(out, tell),
            )  # fmt: skip
        return replace(result, model=trained.model), replace(found, finetuned=trained.accuracy)


def _score(out: Output, model: nn.Module, test: Images | ImageFiles, what: str) -> float:
    from slimilar.train import evaluate

    with out.working(f"Evaluating {what}"):
        return evaluate(model, test).accuracy
