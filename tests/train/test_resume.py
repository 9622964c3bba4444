"""A run is continued, and never overwritten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from torch import nn

from helpers.digits import fingerprint, network
from helpers.short_training import QUIET, SHORT, TEST, TRAIN
from slimilar.errors import InvalidInput, TrainingError
from slimilar.train import (
    LAST,
    train,
)
from slimilar.train.training_log import read_log


def test_tied_weights_are_saved_and_resumed(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].weight = model[1].weight
    first = train(model, TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET)
    again = train(model, TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET, resume=True)
    assert again.model[3].weight is again.model[1].weight
    assert fingerprint(first.model) == fingerprint(again.model)


def test_an_existing_run_is_not_overwritten(tmp_path):
    train(network(), TRAIN, SHORT, folder=tmp_path, settings=QUIET)
    before = (tmp_path / LAST).read_bytes()
    with pytest.raises(TrainingError, match="already holds a run; pass resume=True"):
        train(network(), TRAIN, SHORT, folder=tmp_path)
    with pytest.raises(InvalidInput, match=r"lr must be 0.1 as in the run .* got 0.2"):
        train(network(), TRAIN, replace(SHORT, lr=0.2), folder=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match="needs folder"):
        train(network(), TRAIN, SHORT, resume=True)
    assert (tmp_path / LAST).read_bytes() == before


def test_a_finished_run_resumes_to_itself(tmp_path):
    first = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET)
    again = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET, resume=True)
    assert fingerprint(first.model) == fingerprint(again.model)
    assert first.history == again.history
    assert json.loads(json.dumps(read_log(tmp_path)))[-1]["test_accuracy"] == again.accuracy
