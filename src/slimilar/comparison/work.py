"""How each piece of work is done. All that passes from one to the next is in files of the folder."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from slimilar.comparison.choices import decode, encode
from slimilar.comparison.folder import START, read_json, write_json
from slimilar.comparison.rows import Baseline, ComparisonRow
from slimilar.comparison.tasks import PLAIN, Choice, Entry, Start, Task, TrainingTask
from slimilar.comparison.terms import Subject, Terms, calibration
from slimilar.criteria import Criterion, facts, make, training_hooks
from slimilar.deploy.store import save
from slimilar.pipeline import analyze, apply
from slimilar.pipeline.analysis import plan_from
from slimilar.planning.cost import count
from slimilar.planning.target import PruningTarget
from slimilar.train import LAST, Hooks, Recipe, TrainingResult, TrainingSettings, evaluate, train
from slimilar.train.checkpoint import load_checkpoint, save_checkpoint

PHASES, CHOICES, RUNS, MODELS = "phases", "choices", "runs", "models"
MODEL = "model.safetensors"
_SAVE_EVERY = 50  # steps of training that a kill may cost


@dataclass(frozen=True, eq=False)
class Bench:
    """One process's place to work: the subject, the terms, the folder."""

    subject: Subject
    terms: Terms
    folder: Path

    def perform(self, task: Task) -> ComparisonRow | None:
        """Do a piece of work, or what is left of it; return a row where that is what it makes."""
        if isinstance(task, Entry):
            return self._entry(task)
        if isinstance(task, Start):
            self._start()
        elif isinstance(task, TrainingTask):
            self._phase(task)
        else:
            self._choice(task)
        return None

    # --- what rows share --------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not (self.folder / START).exists():
            cost = count(self.subject.model, self.subject.example)
            score = evaluate(self.subject.model, self.subject.test)
            found = Baseline(score.accuracy, cost.flops, cost.params, score.images)
            write_json(self.folder / START, dataclasses.asdict(found))

    def _phase(self, task: TrainingTask) -> None:
        place = self.folder / PHASES / task.key
        if not (place / "score.json").exists():
            done, told = self._trained(
                self.subject.model, place, self.terms.phase_recipe(), task.seed, self._hooks(task)
            )
            save_checkpoint(place / MODEL, done.model.state_dict(), {})
            score = {
                "accuracy": evaluate(done.model, self.subject.test).accuracy,
                "by_epoch": _by_epoch(done),
            }
            write_json(place / "score.json", score | told)

    def _hooks(self, task: TrainingTask) -> Hooks:
        if task.criterion == PLAIN:
            return Hooks()
        return training_hooks(
            task.criterion, self.subject.model, self.subject.example, flops=task.budget,
            round_to=1, residual=self.terms.residual,
        )  # fmt: skip

    def _choice(self, task: Choice) -> None:
        path = self._path(task)
        if not path.exists():
            began = time.perf_counter()
            plan = analyze(
                self._model(task.phase), self.subject.example, criterion=_made(task),
                residual=self.terms.residual, seed=task.seed, **self._shown(task),
            )  # fmt: skip
            write_json(path, {**encode(plan), "seconds": time.perf_counter() - began})

    def _shown(self, task: Choice) -> dict[str, Any]:
        """Return what a criterion is given: no more than it declares to need."""
        needs = facts(task.criterion).needs
        if needs not in ("images", "labels"):
            return {}
        images, labels = calibration(self.subject, self.terms, task.seed)
        return {"calibration": images, **({"labels": labels} if needs == "labels" else {})}

    def _path(self, task: Choice) -> Path:
        return self.folder / CHOICES / f"{task.key}.json"

    def _model(self, phase: TrainingTask | None) -> nn.Module:
        """Return the network that is pruned: the common start, or what a training phase made of it."""
        if phase is None:
            return self.subject.model
        model = copy.deepcopy(self.subject.model)
        model.load_state_dict(load_checkpoint(self.folder / PHASES / phase.key / MODEL)[0])
        return model.eval()

    # --- a row ------------------------------------------------------------------------------------------------

    def _entry(self, task: Entry) -> ComparisonRow:
        began, terms = time.perf_counter(), self.terms
        chosen = read_json(self._path(task.choice))
        model, example = self._model(task.choice.phase), self.subject.example
        plan = plan_from(model, example, decode(chosen), residual=terms.residual)
        result = apply(
            model, example, plan, PruningTarget("flops", task.budget, round_to=1),
            reconstruction=task.substitute, seed=task.seed,
            calibration=calibration(self.subject, terms, task.seed)[0] if terms.fits(task.substitute) else None,
        )  # fmt: skip
        pruned_in = time.perf_counter() - began
        start, cut = Baseline(**read_json(self.folder / START)), result.cut
        row = ComparisonRow(
            task.key, task.criterion, task.substitute, task.own, task.budget, task.seed,
            cut.flops, cut.flops / start.flops, cut.params, cut.params / start.params,
            before=start.accuracy, pruned=evaluate(result.model, self.subject.test).accuracy,
            choose_seconds=chosen["seconds"], prune_seconds=pruned_in, **self._prepared(task.choice.phase),
        )  # fmt: skip
        row, model = self._tuned(row, result.model) if terms.epochs else (row, result.model)
        if terms.keep:
            save(model, self.folder / MODELS / f"{row.key}.safetensors", source=self.subject.source)
        return row

    def _prepared(self, phase: TrainingTask | None) -> dict[str, Any]:
        if phase is None:
            return {}
        score = read_json(self.folder / PHASES / phase.key / "score.json")
        return {
            "prepared": score["accuracy"],
            "prepare_seconds": score["seconds"],
            "extra_epochs": self.terms.sparse_epochs,
            "resumed": score["resumed"],
        }

    def _tuned(self, row: ComparisonRow, model: nn.Module) -> tuple[ComparisonRow, nn.Module]:
        place = self.folder / RUNS / row.key
        done, told = self._trained(model, place, self.terms.recipe_for(row.substitute), row.seed)
        found = dataclasses.replace(
            row, tuned=evaluate(done.model, self.subject.test).accuracy, epochs=self.terms.epochs,
            by_epoch=_by_epoch(done), train_seconds=told["seconds"], resumed=row.resumed or told["resumed"],
        )  # fmt: skip
        return found, done.model

    def _trained(
        self, model: nn.Module, place: Path, recipe: Recipe, seed: int, hooks: Hooks = Hooks()  # noqa: B008 (frozen)
    ) -> tuple[TrainingResult, dict[str, Any]]:  # fmt: skip
        """Train, or go on training; return the seconds since it went on, too. Test images decide nothing."""
        began, resumed = time.perf_counter(), (place / LAST).exists()
        settings = TrainingSettings(
            seed=seed, precision=self.terms.precision, save_every=_SAVE_EVERY, tensorboard=False
        )
        done = train(
            model, self.subject.train, recipe, test=self.subject.test if self.terms.score_epochs else None,
            folder=place, resume=True, hooks=hooks, settings=settings,
        )  # fmt: skip
        return done, {"seconds": time.perf_counter() - began, "resumed": resumed}


def _by_epoch(done: TrainingResult) -> tuple[float, ...]:
    return tuple(record.test_accuracy for record in done.history if record.test_accuracy is not None)


def _made(task: Choice) -> Criterion:
    """Return a criterion with the task's seed, and marked as trained after a training phase."""
    found: Any = make(task.criterion)
    known = {"seed": task.seed, "trained": task.phase is not None}
    fields = {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    told = {name: value for name, value in known.items() if name in fields}
    chosen: Criterion = dataclasses.replace(found, **told) if told else found
    return chosen


def tidy(folder: Path, row: ComparisonRow) -> None:
    """Remove what is left of a fine-tuning whose row is written."""
    shutil.rmtree(folder / RUNS / row.key, ignore_errors=True)
