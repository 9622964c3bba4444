"""One training from the command line, for `slimilar train` and `slimilar finetune`."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from slimilar.cli.destination import folder_for
from slimilar.cli.images import ImageReader
from slimilar.cli.model_source import OpenedModel
from slimilar.cli.output import Output, ProgressDisplay, escape, percent
from slimilar.cli.training_options import TrainingOptions
from slimilar.cli.training_phase import PhaseOptions

if TYPE_CHECKING:
    from slimilar.train import Progress, Recipe, TrainingResult
    from slimilar.train.settings import Precision


AUTO = "auto"  # the recipe that suits the model


class TrainingCommand:
    """One training from the command line: its data, its progress, its result."""

    def __init__(
        self,
        out: Output,
        opened: OpenedModel,
        options: TrainingOptions,
        *,
        unlabelled: bool = False,
        learns_classes: bool = False,
    ) -> None:
        from slimilar.train.distributed import DistributedContext

        self.opened, self.options, self.folder = opened, options, folder_for(options.out)
        self.first = DistributedContext.join().is_first  # of several processes, one prints and writes
        self.out = out if self.first else Output(quiet=True)
        self._check_run()
        named = options.dataset
        reader = ImageReader(self.out, opened, options.preprocessing, learns_classes)
        self.images: Any
        self.test: Any = None
        if unlabelled:
            found = reader.unlabelled(named, options.limit)
            self.images, self.preprocessing = found.images, found.preprocessing
        else:
            self.images = reader.labelled(named, "train", options.limit)
            self.test = reader.labelled(named, "test", options.limit)
            self.preprocessing = reader.preprocessing(self.images)

    def _check_run(self) -> None:
        """Raise where the folder holds a run that is not to be continued, before images are read."""
        from slimilar.train.run import LAST, check_new_run

        if not self.options.resume:
            check_new_run(self.folder)
        elif not (self.folder / LAST).exists():
            self.out.note(f"{escape(self.folder)} holds no run to resume; training starts from the beginning")

    def __call__(
        self,
        *,
        tune: bool = False,
        teacher: Any = None,
        freeze_statistics: bool = False,
        phase: PhaseOptions = PhaseOptions(),
    ) -> None:
        """Train, save the model and show its accuracy."""
        from slimilar.train import TrainingSettings, finetune, train

        given = self.options
        chosen = changed_recipe(
            self._recipe(teacher is not None), given.epochs, given.lr, freeze_statistics or None
        )
        hooks = phase.hooks(self.opened, chosen)
        settings = TrainingSettings(seed=given.seed, save_every=200, precision=precision_of(given.amp))
        try:
            with self.out.working("Training") as tell:
                result = (finetune if tune else train)(
                    self.opened.model, self.images, chosen, test=self.test, folder=self.folder, resume=given.resume,
                    teacher=teacher, hooks=hooks, settings=settings,
                    progress=shown(self.out, tell),
                )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt("interrupted; to continue, run the same command with --resume") from stop
        phase.mark(result.model)
        if self.first:
            self._finish(result, phase)

    def _recipe(self, taught: bool) -> str:
        """Return the recipe that was named, or else the one that suits the model; say so where it is special."""
        if self.options.recipe != AUTO:
            return self.options.recipe
        if not self.opened.fitted:
            return "quick"
        self.out.note(
            "recipe reconstructed (frozen batch-norm statistics), because the model was reconstructed on "
            f"{self.opened.fitted} images"
        )
        if not taught:
            self.out.note("no teacher is used; to distil from the model before pruning, pass --teacher MODEL")
        return "reconstructed"

    def _finish(self, result: TrainingResult, phase: PhaseOptions) -> None:
        from slimilar.deploy.store import save

        file = save(
            result.model, self.folder / "model.safetensors", source=self.opened.source,
            preprocessing=self.preprocessing, inputs=[(1, *shape) for shape in self.opened.shapes],
            note={"fitted images": self.opened.fitted} if self.opened.fitted else None,
        )  # fmt: skip
        before = (
            []
            if result.start_accuracy is None
            else [["test accuracy before", percent(result.start_accuracy)]]
        )
        rows = [*before, _measured(result), ["model", escape(file)]]
        self.out.table(["<", "<"], rows)
        base = f" --base {shlex.quote(self.opened.base)}" if self.opened.base else ""
        saved = shlex.quote(str(file))
        self.out.next(phase.next(file) or f"slimilar export {saved}{base} -o {self.folder.name}.onnx")
        history = [dataclasses.asdict(epoch) for epoch in result.history]
        start = {} if result.start_accuracy is None else {"start_accuracy": result.start_accuracy}
        self.out.answer({**start, "accuracy": result.accuracy, "history": history, "model": str(file)})


def _measured(result: TrainingResult) -> list[str]:
    """Return the accuracy; without labels, how often the model answers as its teacher in the last epoch."""
    if result.accuracy is None:
        return ["agreement with the teacher, on the training images", percent(result.history[-1].accuracy)]
    return ["test accuracy", percent(result.accuracy)]


def precision_of(amp: str) -> Precision:
    """Return the precision of training that --amp, one of the names in `AMP`, asks for."""
    known: dict[str, Precision] = {
        "auto": "auto", "off": "float32", "float16": "float16", "bfloat16": "bfloat16",
    }  # fmt: skip
    return known[amp]


def changed_recipe(name: str, epochs: int | None, lr: float | None, freeze: bool | None = None) -> Recipe:
    from slimilar.train import recipe

    changes: dict[str, Any] = {"epochs": epochs, "lr": lr, "freeze_statistics": freeze}
    changed = {key: value for key, value in changes.items() if value is not None}
    if lr is not None:
        changed["full_rate_steps"] = None  # a rate that is asked for holds for a training of any length
    return dataclasses.replace(recipe(name), **changed)


def shown(out: Output, tell: ProgressDisplay) -> Any:
    """Return a function that shows the progress of a training."""

    def show(event: Progress) -> None:
        tell(event.step / max(1, event.steps))
        if event.test_accuracy is not None:
            out.note(
                f"epoch {event.epoch}/{event.epochs}: loss {event.loss:.3f}, "
                f"test accuracy {percent(event.test_accuracy)}, {event.images_per_second:.0f} images/s"
            )

    return show
