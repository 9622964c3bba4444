"""Recipes: the paper's numbers, epoch by epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slimilar.cli.training_run import changed_recipe
from slimilar.errors import InvalidInput
from slimilar.train import RECIPES, Recipe, recipe


@pytest.mark.parametrize(
    ("name", "batch_size", "first", "second"),
    [("paper-resnet", 64, 25, 50), ("paper-vgg", 64, 30, 50), ("paper-imagenet", 256, 25, 50)],
)
def test_the_papers_learning_rate_at_every_epoch(name, batch_size, first, second):
    chosen = recipe(name)
    expected = [0.01] * first + [0.001] * (second - first) + [0.0001] * (60 - second)
    assert [chosen.learning_rate(epoch) for epoch in range(chosen.epochs)] == pytest.approx(expected)
    assert (chosen.batch_size, chosen.momentum, chosen.weight_decay) == (batch_size, 0.9, 1e-4)
    assert (chosen.label_smoothing, chosen.ema) == (0, None)


def test_base_training_is_that_of_the_networks_authors():
    expected = [0.1] * 80 + [0.01] * 40 + [0.001] * 40
    chosen = recipe("base")
    assert [chosen.learning_rate(epoch) for epoch in range(chosen.epochs)] == pytest.approx(expected)
    assert (chosen.batch_size, chosen.weight_decay) == (64, 1e-4)


@pytest.mark.parametrize("name", [name for name, r in RECIPES.items() if r.schedule == "steps"])
def test_steps_equal_pytorchs_scheduler(name):
    chosen = recipe(name)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=chosen.lr)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(chosen.milestones), 0.1)
    for epoch in range(chosen.epochs):
        assert chosen.learning_rate(epoch + 0.99) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()


def test_one_cycle_rises_and_falls_once():
    chosen = replace(recipe("one-cycle"), epochs=10, warmup=0.25)
    rates = [chosen.learning_rate(step / 100) for step in range(1001)]
    peak = rates.index(max(rates))
    assert peak == 250
    assert max(rates) == chosen.lr
    assert rates[:251] == sorted(rates[:251])
    assert rates[250:] == sorted(rates[250:], reverse=True)
    assert 0 < rates[0] < chosen.lr / 10
    assert rates[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"schedule": "cosine"},
        {"warmup": 1.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"label_smoothing": 1.0}, {"ema": 1.0},
        {"clip": 0.0},
    ],
)  # fmt: skip
def test_wrong_recipes(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must.*got"):
        replace(Recipe(epochs=1, batch_size=1, lr=0.1), **wrong)


def test_a_recipe_nobody_wrote():
    with pytest.raises(
        InvalidInput, match=r"recipe must be one of .* got 'paper-vgg16': did you mean paper-vgg"
    ):
        recipe("paper-vgg16")


@pytest.mark.parametrize(("steps", "share"), [(10, 0.2), (50, 1.0), (500, 1.0)])
def test_a_short_training_has_a_lower_rate(steps, share):
    chosen = Recipe(epochs=2, batch_size=8, lr=0.1, schedule="one-cycle", full_rate_steps=100)
    fitted = chosen.on(steps)
    assert fitted.lr == pytest.approx(0.1 * share)
    assert fitted.on(1) == fitted  # settled
    assert Recipe(epochs=2, batch_size=8, lr=0.1).on(steps).lr == 0.1


def test_a_rate_that_is_asked_for_holds_for_a_training_of_any_length():
    assert changed_recipe("reconstructed", None, None).on(steps=10).lr < recipe("reconstructed").lr
    asked = changed_recipe("reconstructed", epochs=None, lr=0.1)
    assert asked.full_rate_steps is None
    assert asked.on(steps=10).lr == 0.1
