"""One training run: its state, its steps, its checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.errors import DataError, InvalidInput, TrainingError
from slimilar.train.average import Average
from slimilar.train.batches import Batch, Epoch, batches, mixed_seed
from slimilar.train.checkpoint import (
    load_checkpoint,
    load_optimiser,
    optimiser_tensors,
    prefixed,
    save_checkpoint,
    under,
)
from slimilar.train.evaluate import evaluate
from slimilar.train.job import Job, check_terms, terms
from slimilar.train.log import Log
from slimilar.train.meter import Meter
from slimilar.train.norms import set_training
from slimilar.train.objective import objective
from slimilar.train.settings import EpochRecord, Progress
from slimilar.train.team import Team, placed, shared_batch_norm

LAST, BEST = "last.safetensors", "best.safetensors"


class Run:
    """A network in training. All that the next step depends on is in ``_tensors()`` and ``_info()``."""

    def __init__(self, model: nn.Module, job: Job, team: Team) -> None:
        self.job, self.team, self.recipe = job, team, job.recipe
        self.model = placed(model, team.device)
        self.wrapped = team.wrap(self.model)
        self.optimiser = torch.optim.SGD(
            self.model.parameters(),
            lr=self.recipe.lr,
            momentum=self.recipe.momentum,
            weight_decay=self.recipe.weight_decay,
            nesterov=True,
        )
        self.average = Average(self.model, self.recipe.ema) if self.recipe.ema else None
        self.dtype = job.settings.autocast_dtype(team.device)
        self.scaler = torch.amp.GradScaler(team.device.type, enabled=self.dtype is torch.float16)
        self.epoch, self.step = 0, 0
        self.meter = Meter(team)
        self.history: list[EpochRecord] = []
        self.log: Log | None = None

    # -- the loop ------------------------------------------------------------------------------------------

    def to_the_end(self) -> None:
        if self.team.first and self.job.folder is not None:
            steps = len(self._batches())
            position = (self.epoch, self.epoch * steps + self.step)
            self.log = Log(self.job.folder, position, self.job.settings.tensorboard)
        devices = [self.team.device] if self.team.device.type == "cuda" else []
        try:
            with (
                torch.random.fork_rng(devices),
                shared_batch_norm(self.model, self.team, self.job.settings.shared_batch_norm),
            ):
                while self.epoch < self.recipe.epochs:
                    self._one_epoch()
        finally:
            if self.log is not None:
                self.log.close()
        self.team.wait()

    def _batches(self) -> Epoch:
        return Epoch(
            self.job.data,
            self.recipe.batch_size,
            self.job.settings.seed,
            self.epoch,
            self.team.rank,
            self.team.world,
        )

    def _one_epoch(self) -> None:
        epoch, settings = self._batches(), self.job.settings
        set_training(self.wrapped, self.recipe.freeze_statistics)
        self.meter.start_clock()
        for batch in batches(epoch, self.step):
            lr = self._one_step(batch, len(epoch))
            if self.step % settings.log_every == 0 and self.step < len(epoch):
                self._tell(len(epoch), lr)
            if settings.save_every and self.step % settings.save_every == 0 and self.step < len(epoch):
                self._save()
        self._end_epoch(len(epoch), lr)

    def _one_step(self, batch: Batch, steps: int) -> float:
        # Seeded anew at each step, so that dropout needs no saved state; the 1 keeps it apart from augmentation,
        # because a seed does not change by zeros at its end.
        torch.manual_seed(mixed_seed(self.job.settings.seed, self.epoch, self.step, 1 + self.team.rank))
        lr = self.recipe.learning_rate(self.epoch + self.step / steps)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.zero_grad()
        self.scaler.scale(self._loss(batch)).backward()
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.job.hooks.after_step is not None:
            with torch.no_grad():
                self.job.hooks.after_step(self.model, lr)
        if self.average is not None:
            self.average.update(self.model)
        self.step += 1
        return lr

    def _loss(self, batch: Batch) -> Tensor:
        device = self.team.device
        images = placed(batch.images, device)
        labels = batch.labels.to(device, non_blocking=True)
        with torch.autocast(device.type, self.dtype, enabled=self.dtype is not None):
            scores = self.wrapped(images)
            taught = self._teach(images)
        if self.step == 0:
            self._check(scores)
        smoothing, distillation = self.recipe.label_smoothing, self.job.settings.distillation
        loss = objective(scores.float(), labels, smoothing, taught, distillation)
        self.meter.add(loss.detach(), scores, labels, batch.total)
        # Averaging over processes, as the wrapper does, then gives the mean over the whole batch.
        loss = loss * (len(labels) * self.team.world / batch.total)
        if self.job.hooks.regulariser is not None:
            loss = loss + self.job.hooks.regulariser(self.model)
        return loss

    def _check(self, scores: Tensor) -> None:
        """See to it that there is a score for every label; a device would only report an assertion."""
        if scores.ndim != 2:
            shape = tuple(scores.shape)
            raise InvalidInput(
                f"the network must return scores (images, classes), got shape {shape}; wrap it"
            )
        labels, classes = getattr(self.job.data, "labels", None), scores.shape[1]
        if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            got = f"{int(labels.min())} to {int(labels.max())}"
            raise DataError(
                f"labels must be 0 to {classes - 1} for {classes} scores, got {got}; is it the right data?"
            )

    @torch.no_grad()
    def _teach(self, images: Tensor) -> Tensor | None:
        if self.job.teacher is None:
            return None
        scores: Tensor = self.job.teacher(images)
        return scores.float()

    # -- what is told and kept -----------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"epoch {self.epoch + 1}, by step {self.step}"

    def _tell(self, steps: int, lr: float, **extra: float | None) -> None:
        loss, accuracy = self.meter.means(self._where)
        if not self.team.first:
            return
        if self.log is not None:
            at = {"epoch": self.epoch, "step": self.epoch * steps + self.step}
            told = {name: value for name, value in extra.items() if value is not None}
            self.log.write({**at, "loss": loss, "accuracy": accuracy, "lr": lr, **told})
        if self.job.progress is not None:
            event = Progress(
                self.epoch + 1, self.recipe.epochs, self.step, steps, loss, accuracy, lr, self.meter.rate(),
                extra.get("test_accuracy"),
            )  # fmt: skip
            self.job.progress(event)

    def _end_epoch(self, steps: int, lr: float) -> None:
        if self.job.hooks.on_epoch_end is not None:
            with torch.no_grad():
                self.job.hooks.on_epoch_end(self.model, self.epoch + 1)
        loss, accuracy = self.meter.means(self._where)
        score = None if self.job.test is None else evaluate(self.result(), self.job.test)
        test = (score.accuracy, score.loss) if score else (None, None)
        record = EpochRecord(self.epoch + 1, loss, accuracy, lr, *test)
        self._tell(steps, lr, test_accuracy=test[0], test_loss=test[1])
        best = max((r.test_accuracy for r in self.history if r.test_accuracy is not None), default=-1.0)
        self.history.append(record)
        self.epoch, self.step = self.epoch + 1, 0
        self.meter.sums.zero_()
        if record.test_accuracy is not None and record.test_accuracy > best:
            self._save_best(record)
        self._save()

    def result(self) -> nn.Module:
        """Return the network to use: the averaged one where there is one."""
        return self.model if self.average is None else self.average.model

    def _save_best(self, record: EpochRecord) -> None:
        if self.team.first and self.job.folder is not None:
            state = self.result().state_dict()
            save_checkpoint(self.job.folder / BEST, state, dataclasses.asdict(record))

    def _save(self) -> None:
        totals = self.meter.totals(
            self._where
        )  # of all processes; and a loss that is not finite must not reach the disk
        if self.team.first and self.job.folder is not None:
            save_checkpoint(self.job.folder / LAST, self._tensors(totals), self._info())

    def _tensors(self, totals: list[float]) -> dict[str, Tensor]:
        tensors = prefixed("model", self.model.state_dict())
        tensors |= prefixed("momentum", optimiser_tensors(self.optimiser))
        if self.average is not None:
            tensors |= prefixed("average", self.average.state())
        return {**tensors, "sums": torch.tensor(totals, dtype=torch.float64)}

    def _info(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "history": [dataclasses.asdict(record) for record in self.history],
            "scaler": self.scaler.state_dict(),
            "terms": terms(self.job),
        }

    def load(self, path: Path) -> None:
        """Go back to where a checkpoint was written."""
        tensors, info = load_checkpoint(path)
        check_terms(path, info["terms"], terms(self.job))
        try:
            self.model.load_state_dict(under("model", tensors))
        except RuntimeError as error:
            raise TrainingError(
                f"{path} must be of the same network, but its weights do not fit; "
                "pass the network that the run was started with, or start anew in another folder"
            ) from error
        load_optimiser(self.optimiser, under("momentum", tensors))
        if self.average is not None:
            self.average.load(under("average", tensors))
        self.scaler.load_state_dict(info["scaler"])
        self.epoch, self.step = info["epoch"], info["step"]
        self.history = [EpochRecord(**record) for record in info["history"]]
        self.meter.load(tensors["sums"])
