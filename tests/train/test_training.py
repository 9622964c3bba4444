"""Training on small real images: it learns, and equals a plain loop."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from helpers.digits import fingerprint, network
from helpers.short_training import SHORT, TEST, TRAIN
from slimilar.errors import DataError, InvalidInput
from slimilar.train import (
    Distillation,
    Recipe,
    TrainingSettings,
    evaluate,
    finetune,
    train,
)
from slimilar.train.batches import Epoch


def test_it_learns(trained):
    assert trained.accuracy > 0.85
    assert trained.history[-1].loss < trained.history[0].loss / 2
    assert trained.accuracy == evaluate(trained.model, TEST).accuracy
    assert not trained.model.training
    assert all(p.requires_grad for p in trained.model.parameters())


def test_the_callers_model_and_random_numbers_are_untouched():
    model, state = network().eval(), torch.get_rng_state()
    before = fingerprint(model)
    result = train(model, TRAIN, replace(SHORT, epochs=1))
    assert fingerprint(model) == before != fingerprint(result.model)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_weights_stay_frozen():
    model = network()
    model[0].requires_grad_(False)
    result = train(model, TRAIN.first(64), replace(SHORT, ema=0.5)).model
    assert torch.equal(result[0].weight, model[0].weight)
    assert [p.requires_grad for p in result.parameters()] == [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_training_equals_a_plain_loop(clip):
    """The first epoch by hand: the same batches through torch's own optimiser and loss."""
    model = network()
    recipe = Recipe(epochs=1, batch_size=50, lr=0.05, label_smoothing=0.1, clip=clip)
    result = train(model, TRAIN.first(230), recipe, settings=TrainingSettings(seed=7))
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    epoch = Epoch(TRAIN.first(230), 50, seed=7, epoch=0)
    for step in range(len(epoch)):
        images, labels, _ = epoch[step]
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if clip is not None:
            assert length > clip
            for p in model.parameters():
                p.grad *= clip / length
        optimiser.step()
    for ours, plain in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_any_pytorch_dataset():
    pairs = TensorDataset(TRAIN.tensor()[:64], TRAIN.labels[:64])
    result = train(network(), pairs, SHORT, test=pairs)
    assert len(result.history) == 2
    assert (
        result.accuracy
        == evaluate(result.model, pairs).accuracy
        == evaluate(result.model, TRAIN.first(64)).accuracy
    )
    with pytest.raises(InvalidInput, match=r"got generator; pass loader.dataset"):
        train(network(), (pair for pair in pairs), SHORT)


def test_too_little_to_train_on():
    with pytest.raises(
        InvalidInput, match="batch_size must give at least two images for each of 2 processes"
    ):
        Epoch(TRAIN, 3, 0, 0, world_size=2)
    with pytest.raises(DataError, match="at least two training images"):
        train(network(), TRAIN.first(1), SHORT)
    with pytest.raises(DataError, match="at least one image"):
        evaluate(network(), TRAIN.first(0))


def test_labels_without_a_score():
    with pytest.raises(DataError, match="labels must be 0 to 9 for 10 scores, got -1 to -1"):
        train(network(), replace(TRAIN, labels=torch.full_like(TRAIN.labels, -1)), SHORT)
    with pytest.raises(DataError, match="got 5 to 14"):
        train(network(), replace(TRAIN, labels=TRAIN.labels + 5), SHORT)
    with pytest.raises(InvalidInput, match=r"scores \(images, classes\), got shape \(32, 16, 2, 2\)"):
        train(network()[:8], TRAIN, SHORT)


def test_a_teacher_helps_where_labels_are_wrong(trained):
    """All labels are wrong; what is right can only come from the teacher."""
    wrong = replace(TRAIN, labels=(TRAIN.labels + 1) % 10)
    settings = TrainingSettings(distillation=Distillation(weight=1.0))
    teacher = copy.deepcopy(trained.model).train()
    before = fingerprint(teacher)
    taught = train(
        network(seed=1), wrong, replace(SHORT, epochs=4), test=TEST, teacher=teacher, settings=settings
    )
    assert taught.accuracy > 0.7
    assert fingerprint(teacher) == before
    assert teacher.training


def test_finetune_tells_where_it_started(trained):
    result = finetune(trained.model, TRAIN, replace(SHORT, epochs=1, lr=0.001), test=TEST)
    assert result.start_accuracy == trained.accuracy
    assert abs(result.accuracy - trained.accuracy) < 0.05
