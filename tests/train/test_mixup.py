"""Blended images: the loss against soft labels, one step by hand, and a run that is continued."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from helpers.digits import fingerprint, network
from helpers.short_training import QUIET, SHORT, TRAIN
from slimilar.train import Distillation, Recipe, train, training_loss
from slimilar.train.batches import Epoch, mixed_seed
from slimilar.train.mixup import Mixture

MIXED = replace(SHORT, mixup=True)


def test_both_labels_count_by_their_shares() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    mixture = Mixture(torch.tensor([1, 2, 3, 4, 5, 0]), torch.rand(6, dtype=torch.float64))
    soft = mixture.of(F.one_hot(labels, 4).double())
    torch.testing.assert_close(training_loss(scores, labels, mixture=mixture), F.cross_entropy(scores, soft))


def test_an_image_keeps_at_least_half_of_itself_and_each_is_a_partner_once() -> None:
    torch.manual_seed(0)
    found = Mixture.drawn(200)
    assert 0.5 <= float(found.share.min()) < 0.52
    assert float(found.share.max()) > 0.98
    assert sorted(found.partner.tolist()) == list(range(200))


def test_teacher_and_student_see_the_same_blended_images() -> None:
    """One step of a run is the step that its gradient gives by hand."""
    recipe = Recipe(epochs=1, batch_size=64, lr=0.05, momentum=0.9, weight_decay=0.0, mixup=True)
    data, model, teacher = TRAIN.first(64), network(), network().eval()
    trained = train(
        model, data, recipe, teacher=teacher, settings=replace(QUIET, distillation=Distillation(weight=1))
    ).model  # fmt: skip
    images, labels, _ = Epoch(data, 64, seed=QUIET.seed, epoch=0)[0]
    torch.manual_seed(mixed_seed(QUIET.seed, 0, 0, 1))
    images = Mixture.drawn(64).of(images)
    scores = model.train()(images)
    training_loss(scores, labels, 0.0, teacher(images).detach(), Distillation(weight=1)).backward()
    for ours, plain in zip(trained.parameters(), model.parameters(), strict=True):
        assert plain.grad is not None
        torch.testing.assert_close(ours, plain - 0.05 * 1.9 * plain.grad, rtol=1e-3, atol=1e-6)


def test_long_trainings_with_a_teacher_blend_images_and_others_do_not() -> None:
    """Six steps: two epochs of 96 images."""
    data, plain = TRAIN.first(96), Recipe(epochs=2, batch_size=32, lr=0.05)

    def weights(recipe: Recipe, teacher: nn.Module | None = None) -> str:
        return fingerprint(train(network(), data, recipe, teacher=teacher, settings=QUIET).model)

    teacher = network().eval()
    mixed = weights(replace(plain, mixup=True), teacher)
    assert weights(replace(plain, mixup_from_steps=6), teacher) == mixed
    assert weights(replace(plain, mixup_from_steps=7), teacher) == weights(plain, teacher) != mixed
    assert weights(replace(plain, mixup_from_steps=6)) == weights(plain)


def test_a_run_with_blended_images_is_continued_to_the_same_weights(tmp_path) -> None:
    whole = train(network(), TRAIN, MIXED, settings=QUIET).model

    class Stop(Exception):
        pass

    def stop(progress) -> None:
        if progress.epoch == 1 and progress.test_accuracy is None and progress.step > 1:
            raise Stop

    settings = replace(QUIET, save_every=1, log_every=2)
    try:
        train(network(), TRAIN, MIXED, settings=settings, folder=tmp_path, progress=stop)
    except Stop:
        pass
    else:
        raise AssertionError("it was not stopped")
    again = train(network(), TRAIN, MIXED, settings=settings, folder=tmp_path, resume=True).model
    assert fingerprint(again) == fingerprint(whole)
