"""`slimilar train`, `slimilar finetune` and `slimilar evaluate`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.images import labelled
from slimilar.cli.opened import Opened, folder_for, open_model
from slimilar.cli.output import Output, Tell, escape, percent
from slimilar.cli.phases import For, Phase, Stream, Strength, Towards

if TYPE_CHECKING:
    from slimilar.train import Progress, Recipe, Score, TrainingResult

Data = Annotated[
    str,
    typer.Option(
        help="demo, cifar10, cifar100, a .npz file, or a folder with train and test inside.", metavar="DATA"
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use the first images only.", min=1)]
Epochs = Annotated[int | None, typer.Option(help="Other than the recipe's.", min=1)]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate, other than the recipe's.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]


def train(
    model: options.Model,
    data: Data = "cifar10",
    recipe: Annotated[
        str, typer.Option(help="one-cycle, base, quick, ...; a wrong name lists them.")
    ] = "one-cycle",
    epochs: Epochs = None,
    lr: Rate = None,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    weights: options.Weights = None,
    input: options.Input = None,
    out: options.Out = Path("trained"),
    resume: Resume = False,
    seed: options.Seed = 0,
    criterion: For = None,
    flops: Towards = None,
    strength: Strength = None,
    residual: Stream = "inner",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model; may be killed at any moment and resumed. Runs under torchrun and accelerate as well.

    Example: [bold]slimilar train slimilar:resnet20 --data cifar10.npz -o runs/resnet20[/]
    """
    import torch

    torch.manual_seed(seed)
    opened = open_model(model, weights, input)
    run = _Run(Output(json, quiet), opened, data, limit, normalise)
    phase = Phase(criterion, flops, strength, residual)
    run(_changed(recipe, epochs, lr), folder_for(out), resume, seed, phase=phase)


def finetune(
    model: options.Model,
    data: Data = "cifar10",
    recipe: Annotated[str, typer.Option(help="quick, paper-vgg, ...; a wrong name lists them.")] = "quick",
    epochs: Epochs = None,
    lr: Rate = None,
    freeze_statistics: Annotated[
        bool,
        typer.Option("--freeze-statistics", help="Batch norms keep their means and variances: after a fit."),
    ] = False,
    teacher: Annotated[
        str | None, typer.Option(help="A model whose scores are learnt beside the labels.", metavar="MODEL")
    ] = None,
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    out: options.Out = Path("finetuned"),
    resume: Resume = False,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a pruned model on, and say what it was worth before and after.

    What prune --calibrate made does best, in a short run, with --freeze-statistics --lr 0.003.

    Example: [bold]slimilar finetune small/model.safetensors --data cifar10.npz --epochs 3[/]
    """
    opened = open_model(model, weights, input, base)
    told = open_model(teacher, None, input).model if teacher else None
    run = _Run(Output(json, quiet), opened, data, limit, normalise)
    chosen = _changed(recipe, epochs, lr, freeze_statistics or None)
    run(chosen, folder_for(out), resume, seed, tune=True, teacher=told)


class _Run:
    """One training from the command line: its data, its progress, its result."""

    def __init__(self, out: Output, opened: Opened, data: str, limit: int | None, normalise: str) -> None:
        from slimilar.train.distributed import DistributedContext

        self.opened = opened
        self.first = DistributedContext.join().is_first  # of several processes, one prints and writes
        self.out = out if self.first else Output(quiet=True)
        self.images = labelled(opened, data, "train", limit, normalise)
        self.test = labelled(opened, data, "test", limit, normalise)

    def __call__(
        self, chosen: Recipe, folder: Path, resume: bool, seed: int,
        tune: bool = False, teacher: Any = None, phase: Phase = Phase(),  # noqa: B008 (frozen)
    ) -> None:  # fmt: skip
        from slimilar.train import TrainingSettings, finetune, train

        hooks = phase.hooks(self.opened, chosen)
        with self.out.working("Training") as tell:
            result = (finetune if tune else train)(
                self.opened.model, self.images, chosen, test=self.test, folder=folder, resume=resume,
                teacher=teacher, hooks=hooks, settings=TrainingSettings(seed=seed, save_every=200),
                progress=_shown(self.out, tell),
            )  # fmt: skip
        phase.mark(result.model)
        if self.first:
            self._finish(result, folder, phase)

    def _finish(self, result: TrainingResult, folder: Path, phase: Phase) -> None:
        from slimilar.deploy.store import save

        file = save(result.model, folder / "model.safetensors", source=self.opened.source)
        before = (
            []
            if result.start_accuracy is None
            else [["test accuracy before", percent(result.start_accuracy)]]
        )
        rows = [*before, ["test accuracy", percent(result.accuracy or 0)], ["model", escape(file)]]
        self.out.table(["<", "<"], rows)
        if command := phase.next(file):
            self.out.say(f"Next: [bold]{escape(command)}[/]")
        history = [dataclasses.asdict(epoch) for epoch in result.history]
        start = {} if result.start_accuracy is None else {"start_accuracy": result.start_accuracy}
        self.out.answer({**start, "accuracy": result.accuracy, "history": history, "model": str(file)})


def _changed(name: str, epochs: int | None, lr: float | None, freeze: bool | None = None) -> Recipe:
    from slimilar.train import recipe

    changes: dict[str, Any] = {"epochs": epochs, "lr": lr, "freeze_statistics": freeze}
    return dataclasses.replace(
        recipe(name), **{key: value for key, value in changes.items() if value is not None}
    )


def _shown(out: Output, tell: Tell) -> Any:
    def show(event: Progress) -> None:
        tell(event.step / max(1, event.steps))
        if event.test_accuracy is not None:
            out.note(
                f"epoch {event.epoch}/{event.epochs}: loss {event.loss:.3f}, "
                f"test accuracy {percent(event.test_accuracy)}, {event.images_per_second:.0f} images/s"
            )

    return show


def evaluate(
    models: Annotated[list[str], typer.Argument(help="Models to evaluate.", metavar="MODEL...")],
    data: Data = "demo",
    limit: Limit = None,
    normalise: options.Normalise = "auto",
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure accuracy on test images, with 95 % confidence intervals.

    Example: [bold]slimilar evaluate slimilar:demo small/model.safetensors --data demo[/]
    """
    from slimilar.train import evaluate as score

    out = Output(json, quiet)
    found: dict[str, Score] = {}
    for name in models:
        opened = open_model(name, None if name.endswith(".safetensors") else weights, input, base)
        with out.working(f"Evaluating {name}"):
            found[name] = score(opened.model, labelled(opened, data, "test", limit, normalise))
    rows = [
        [escape(name), percent(s.accuracy), "{:.1f}..{:.1f}".format(*(100 * x for x in wilson(s.accuracy, s.images))),
         percent(s.top5), f"{s.loss:.3f}", str(s.images)]
        for name, s in found.items()
    ]  # fmt: skip
    out.table(["<model", "accuracy", "<95 %", "top-5", "loss", "images"], rows)
    out.answer({name: dataclasses.asdict(score) for name, score in found.items()})


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> [round(x, 3) for x in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    z = 1.959964
    middle = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - reach) / (1 + z * z / count), (middle + reach) / (1 + z * z / count)
