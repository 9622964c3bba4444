"""Batch norms with frozen statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from helpers.digits import network
from helpers.short_training import SHORT, TEST, TRAIN
from slimilar.errors import InvalidInput
from slimilar.train import (
    Recipe,
    train,
)
from slimilar.train.batches import Epoch


def statistics(model):
    return [b for name, b in model.named_buffers() if "running" in name]


@pytest.mark.parametrize("freeze", [True, False])
def test_statistics_stay_where_they_are_frozen(freeze, tmp_path):
    """Two epochs, with a look at the test images between them, and all else learns."""
    model = train(network(), TRAIN.first(64), SHORT).model
    recipe = replace(SHORT, epochs=2, freeze_statistics=freeze)
    result = train(model, TRAIN.first(64), recipe, test=TEST.first(50), folder=tmp_path).model
    kept = [torch.equal(a, b) for a, b in zip(statistics(model), statistics(result), strict=True)]
    assert kept
    assert all(kept) if freeze else not any(kept)
    assert not any(map(torch.equal, model.parameters(), result.parameters()))
    with pytest.raises(InvalidInput, match=r"freeze_statistics must be"):
        train(
            model,
            TRAIN.first(64),
            replace(recipe, freeze_statistics=not freeze),
            folder=tmp_path,
            resume=True,
        )


@pytest.mark.parametrize(("epochs", "freeze"), [(1, True), (2, False)])
def test_statistics_are_frozen_in_short_trainings_alone(epochs, freeze):
    """Two steps are fewer than three, four are not."""
    model = train(network(), TRAIN.first(64), SHORT).model
    recipe = Recipe(epochs=epochs, batch_size=32, lr=0.05, freeze_below_steps=3)
    result = train(model, TRAIN.first(64), recipe).model
    kept = [torch.equal(a, b) for a, b in zip(statistics(model), statistics(result), strict=True)]
    assert all(kept) if freeze else not any(kept)


def test_frozen_statistics_are_those_that_the_steps_use():
    """One step by hand, through the network in evaluation mode."""
    model = train(network(), TRAIN.first(64), SHORT).model
    recipe = Recipe(epochs=1, batch_size=64, lr=0.05, weight_decay=0.0, freeze_statistics=True)
    result = train(model, TRAIN.first(64), recipe).model
    images, labels, _ = Epoch(TRAIN.first(64), 64, seed=0, epoch=0)[0]
    model.eval().zero_grad()  # gradients of its own training
    F.cross_entropy(model(images), labels).backward()
    for ours, plain in zip(result.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain - 0.05 * 1.9 * plain.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_off_where_a_recipe_says_so(dropout):
    """Without dropout a step is that of the same network without such a layer."""
    recipe = Recipe(epochs=1, batch_size=64, lr=0.05, no_dropout=not dropout)
    dropped, plain = (train(network(rate), TRAIN.first(64), recipe).model for rate in (0.5, 0.0))
    same = [torch.equal(a, b) for a, b in zip(dropped.parameters(), plain.parameters(), strict=True)]
    assert all(same) is not dropout


def test_recipes_of_older_checkpoints_have_the_same_terms():
    assert {"freeze_statistics", "no_dropout"}.isdisjoint(Recipe(epochs=1, batch_size=2, lr=0.1).terms())
    changed = Recipe(epochs=1, batch_size=2, lr=0.1, freeze_statistics=True, no_dropout=True).terms()
    assert changed["freeze_statistics"] is True
    assert changed["no_dropout"] is True
