"""Hooks are called when they should be, and change what is learnt."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from helpers.digits import network
from helpers.short_training import QUIET, SHORT, TEST, TRAIN
from slimilar.train import (
    LAST,
    Hooks,
    evaluate,
    train,
)


def test_regulariser_drives_gammas_down():
    def sparsity(model):
        return 0.05 * sum(m.weight.abs().sum() for m in model if isinstance(m, nn.BatchNorm2d))

    plain = train(network(), TRAIN, SHORT).model
    sparse = train(network(), TRAIN, SHORT, hooks=Hooks(regulariser=sparsity)).model
    assert sparse[1].weight.abs().mean() < 0.7 * plain[1].weight.abs().mean()


def test_after_step_can_shrink_weights_to_zero():
    rates = []

    def shrink(model, lr):
        rates.append(lr)
        model[1].weight.copy_(F.softshrink(model[1].weight, lr))

    result = train(network(), TRAIN, SHORT, hooks=Hooks(after_step=shrink))
    assert (result.model[1].weight == 0).any()
    assert rates == pytest.approx([SHORT.learning_rate(step / 19) for step in range(38)])


def test_on_epoch_end_comes_before_evaluation_and_saving(tmp_path):
    calls = []

    def prune_softly(model, epoch):
        calls.append(epoch)
        model[0].weight[:4] = 0

    hooks = Hooks(on_epoch_end=prune_softly)
    result = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, hooks=hooks, settings=QUIET)
    assert calls == [1, 2]
    assert not load_file(tmp_path / LAST)["model.0.weight"][:4].any()
    assert result.accuracy == evaluate(result.model, TEST).accuracy
