"""Fine-tuning without labels: a pruned network learns from the one before pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import slimilar
from helpers.digits import digits, network
from helpers.short_training import SHORT, TEST, TRAIN
from slimilar.data import UnlabelledImages
from slimilar.errors import DataError, InvalidInput
from slimilar.train import evaluate, finetune, recipe, train


def test_a_fitted_network_gains_from_images_without_labels(trained):
    """Prune, fit and fine-tune: no label is used on the way."""
    images = TRAIN.tensor()
    small = slimilar.prune(trained.model, images[:1], flops=0.2, calibration=images[:256], round_to=1).model
    tuning = replace(recipe("reconstructed"), epochs=8, batch_size=32, lr=0.03)  # few steps: a larger rate
    tuned = finetune(small, UnlabelledImages(images, flip=False), tuning, teacher=trained.model)
    before, after = (evaluate(model, TEST).accuracy for model in (small, tuned.model))
    assert after > before + 0.04
    assert tuned.history[-1].accuracy > 0.88  # agreement with the teacher
    assert tuned.start_accuracy is None


def test_a_tensor_of_images_is_training_data():
    images = TRAIN.first(64).tensor()
    teacher = train(network(), TRAIN.first(64), SHORT).model
    one, other = (
        train(network(seed=1), data, SHORT, teacher=teacher) for data in (images, UnlabelledImages(images))
    )
    assert one.history == other.history


def test_images_without_labels_need_a_teacher():
    with pytest.raises(InvalidInput, match="need teacher"):
        train(network(), digits(0, 64).tensor(), SHORT)


def test_bytes_are_not_ready_for_a_network():
    with pytest.raises(DataError, match="must be floats"):
        train(network(), digits(0, 64).images, SHORT, teacher=network())


def test_half_of_the_images_are_flipped():
    images = torch.arange(4 * 6.0).reshape(4, 1, 2, 3)
    draws = torch.tensor([[0.0, 0, 0.2, 0, 0], [0, 0, 0.7, 0, 0]])
    flipped, kept = UnlabelledImages(images).batch(torch.tensor([3, 1]), draws)[0]
    assert torch.equal(flipped, images[3].flip(2))
    assert torch.equal(kept, images[1])
    assert torch.equal(
        UnlabelledImages(images, flip=False).batch(torch.tensor([3]), draws[:1])[0][0], images[3]
    )
