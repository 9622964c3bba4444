"""The moving average of the weights, against a hand-written one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.digits import fingerprint, network
from helpers.short_training import QUIET, SHORT, TEST, TRAIN
from slimilar.train import (
    LAST,
    train,
)
from slimilar.train.average import average_tensors, load_average, moving_average


def test_average_is_a_moving_average():
    model = nn.BatchNorm1d(1)
    average = moving_average(model, decay=0.5)
    values = []
    expected, mean = 1.0, 0.0
    for step, weight in enumerate([2.0, 4.0, -1.0]):
        nn.init.constant_(model.weight, weight)
        model.running_mean.fill_(weight)
        average.update_parameters(model)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
        values.append(expected)
        assert float(average.module.weight) == pytest.approx(expected)
        mean = decay * mean + (1 - decay) * weight
        assert float(average.module.running_mean) == pytest.approx(mean)
    assert average_tensors(average)["steps"] == 3


def test_training_returns_the_average(tmp_path):
    settings = replace(QUIET, log_every=100)
    plain = train(network(), TRAIN, SHORT, settings=settings)
    averaged = train(
        network(), TRAIN, replace(SHORT, ema=0.99), test=TEST, folder=tmp_path, settings=settings
    )
    last = load_file(tmp_path / LAST)
    assert torch.equal(last["model.0.weight"], plain.model[0].weight)
    assert torch.equal(last["average.0.weight"], averaged.model[0].weight)
    assert not torch.equal(plain.model[0].weight, averaged.model[0].weight)


def test_a_loaded_average_goes_on_bit_by_bit():
    """The number of updates counts, because early updates have a smaller decay."""
    torch.manual_seed(0)
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    first = moving_average(model, decay=0.9)
    for _ in range(3):
        nn.init.normal_(model.weight)
        first.update_parameters(model)
    second = moving_average(other, decay=0.9)
    load_average(second, {name: t.clone() for name, t in average_tensors(first).items()})
    nn.init.normal_(model.weight)
    for average in (first, second):
        average.update_parameters(model)
    assert fingerprint(first.module) == fingerprint(second.module)
    assert not any(p.requires_grad for p in first.module.parameters())
