"""The training loop: steps, epochs, and what is reported and saved on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn

from slimilar.errors import DataError, InvalidInput, Option, TrainingError
from slimilar.train.batches import Batch, Epoch, batches, mixed_seed
from slimilar.train.checkpoint import save_checkpoint
from slimilar.train.configuration import RunConfiguration
from slimilar.train.distributed import DistributedContext, placed
from slimilar.train.evaluate import evaluate
from slimilar.train.loss import training_loss
from slimilar.train.mixup import Mixture
from slimilar.train.settings import EpochRecord, Progress
from slimilar.train.state import TrainingState
from slimilar.train.synchronized_batch_norm import synchronized_batch_norm
from slimilar.train.training_log import TrainingLog
from slimilar.train.training_mode import set_training
from slimilar.utils.allocator import freed_memory_kept

LAST, BEST = "last.safetensors", "best.safetensors"


def check_new_run(folder: Path) -> None:
    """Raise if a folder already holds a run."""
    if (folder / LAST).exists():
        raise TrainingError(
            f"{folder} already holds a run; pass ",
            Option("resume", True),
            " to continue it, or choose another folder",
        )


class TrainingRun:
    """A run of a configuration in this process, from its state to the last epoch."""

    def __init__(
        self, model: nn.Module, configuration: RunConfiguration, context: DistributedContext
    ) -> None:
        self.configuration, self.context, self.recipe = configuration, context, configuration.recipe
        if configuration.teacher is None:  # what blended images gain was measured with one
            self.recipe = dataclasses.replace(self.recipe, mixup_from_steps=None)
        self.settings, self.hooks = configuration.settings, configuration.hooks
        self.state = TrainingState(model, configuration, context)
        self.wrapped = context.wrap(self.state.model)
        self.folder = configuration.folder if context.is_first else None  # None: this process writes nothing
        self.log: TrainingLog | None = None

    def complete(self) -> None:
        """Train to the end of the last epoch."""
        state, device = self.state, self.context.device
        if self.folder is not None:
            position = (state.epoch, state.epoch * len(self._epoch()) + state.step)
            self.log = TrainingLog(self.folder, position, self.settings.tensorboard)
        world_size, synchronized = self.context.world_size, self.settings.sync_batch_norm
        try:
            with (
                freed_memory_kept(),
                torch.random.fork_rng([device] if device.type == "cuda" else []),
                synchronized_batch_norm(state.model, world_size, synchronized),
            ):
                while state.epoch < self.recipe.epochs:
                    self._one_epoch()
        finally:
            if self.log is not None:
                self.log.close()
        self.context.barrier()

    def _epoch(self) -> Epoch:
        data, size, seed = self.configuration.data, self.recipe.batch_size, self.settings.seed
        return Epoch(data, size, seed, self.state.epoch, self.context.rank, self.context.world_size)

    def _one_epoch(self) -> None:
        epoch, state, settings = self._epoch(), self.state, self.settings
        frozen = self.recipe.on(len(epoch)).freeze_statistics
        set_training(self.wrapped, frozen, not self.recipe.no_dropout)
        state.sums.start_clock()
        for batch in batches(epoch, state.step):
            lr = self._one_step(batch, len(epoch))
            if state.step < len(epoch):
                if state.step % settings.log_every == 0:
                    self._report(len(epoch), lr)
                if settings.save_every and state.step % settings.save_every == 0:
                    self._save()
        self._end_epoch(len(epoch), lr)

    def _one_step(self, batch: Batch, steps: int) -> float:
        state = self.state
        # Seeded at each step, so that dropout needs no saved state. The 1 separates it from the augmentation,
        # because a seed does not change by zeros at its end.
        torch.manual_seed(mixed_seed(self.settings.seed, state.epoch, state.step, 1 + self.context.rank))
        recipe = self.recipe.on(steps)
        lr = recipe.learning_rate(state.epoch + state.step / steps)
        for group in state.optimiser.param_groups:
            group["lr"] = lr
        state.optimiser.zero_grad()
        state.scaler.scale(self._loss(batch, recipe.mixup)).backward()
        if self.recipe.clip is not None:
            state.scaler.unscale_(state.optimiser)
            nn.utils.clip_grad_norm_(state.model.parameters(), self.recipe.clip)
        state.scaler.step(state.optimiser)
        state.scaler.update()
        if self.hooks.after_step is not None:
            with torch.no_grad():
                self.hooks.after_step(state.model, lr)
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.step += 1
        return lr

    def _loss(self, batch: Batch, mixup: bool) -> Tensor:
        state, device = self.state, self.context.device
        images, mixture = placed(batch.images, device), None
        if mixup:
            mixture = Mixture.drawn(len(images)).to(device)
            images = placed(mixture.of(images), device)
        with torch.autocast(device.type, state.dtype, enabled=state.dtype is not None):
            scores = self.wrapped(images)
            teacher_scores = self._teacher_scores(images)
        labels = self._labels(batch, teacher_scores)
        if state.step == 0:
            _check_scores(scores, getattr(self.configuration.data, "labels", None))
        smoothing, distillation = self.recipe.label_smoothing, self.settings.distillation
        loss = training_loss(scores.float(), labels, smoothing, teacher_scores, distillation, mixture)
        state.sums.add(loss.detach(), scores, labels, batch.total)
        # The wrapper averages over processes; with this factor that is the mean over the whole batch.
        loss = loss * (len(labels) * self.context.world_size / batch.total)
        if self.hooks.regulariser is not None:
            loss = loss + self.hooks.regulariser(state.model)
        return loss

    def _labels(self, batch: Batch, teacher_scores: Tensor | None) -> Tensor:
        """Return the labels of a batch; the teacher's answers where only those are learnt."""
        if teacher_scores is not None and self.settings.distillation.weight == 1:
            return teacher_scores.argmax(1)
        return batch.labels.to(self.context.device, non_blocking=True)

    @torch.no_grad()
    def _teacher_scores(self, images: Tensor) -> Tensor | None:
        if self.configuration.teacher is None:
            return None
        scores: Tensor = self.configuration.teacher(images)
        return scores.float()

    def _report(self, steps: int, lr: float, **test: float | None) -> None:
        """Write to the log and call the caller's progress function; all processes must take part in the sums."""
        state = self.state
        loss, accuracy = state.sums.means(state.position)
        if not self.context.is_first:
            return
        if self.log is not None:
            at = {"epoch": state.epoch, "step": state.epoch * steps + state.step}
            known = {name: value for name, value in test.items() if value is not None}
            self.log.write({**at, "loss": loss, "accuracy": accuracy, "lr": lr, **known})
        if self.configuration.progress is not None:
            event = Progress(
                state.epoch + 1, self.recipe.epochs, state.step, steps, loss, accuracy, lr,
                state.sums.images_per_second(), test.get("test_accuracy"),
            )  # fmt: skip
            self.configuration.progress(event)

    def _end_epoch(self, steps: int, lr: float) -> None:
        state, data = self.state, self.configuration.test
        if self.hooks.on_epoch_end is not None:
            with torch.no_grad():
                self.hooks.on_epoch_end(state.model, state.epoch + 1)
        loss, accuracy = state.sums.means(state.position)
        score = None if data is None else evaluate(state.result(), data)
        test = (score.accuracy, score.loss) if score else (None, None)
        record = EpochRecord(state.epoch + 1, loss, accuracy, lr, *test)
        self._report(steps, lr, test_accuracy=test[0], test_loss=test[1])
        is_best = test[0] is not None and test[0] > state.best_accuracy
        state.end_epoch(record)
        if is_best and self.folder is not None:
            save_checkpoint(self.folder / BEST, state.result().state_dict(), dataclasses.asdict(record))
        self._save()

    def _save(self) -> None:
        # Summed by all processes. A loss that is not finite raises here, before it reaches the disk.
        totals = self.state.sums.totals(self.state.position)
        if self.folder is not None:
            self.state.save(self.folder / LAST, totals)


def _check_scores(scores: Tensor, labels: Tensor | None) -> None:
    """Check that there is a score for every label; a device would only report an assertion."""
    if scores.ndim != 2:
        shape = tuple(scores.shape)
        raise InvalidInput(f"the network must return scores (images, classes), got shape {shape}; wrap it")
    classes = scores.shape[1]
    if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"labels must be 0 to {classes - 1} for {classes} scores, got {got}; check the data")
