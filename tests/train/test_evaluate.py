"""Scores against a count by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from helpers.short_training import TEST
from slimilar.train import (
    evaluate,
)


def test_evaluate_equals_a_count_by_hand(trained):
    model = copy.deepcopy(trained.model)
    model.train()
    model[1].eval()
    score = evaluate(model, TEST, batch_size=77)
    assert [m.training for m in model][:3] == [True, False, True]
    with torch.no_grad():
        scores = trained.model(TEST.tensor())
    assert score.accuracy == pytest.approx(float((scores.argmax(1) == TEST.labels).double().mean()))
    near = (scores.argsort(1, descending=True)[:, :5] == TEST.labels[:, None]).any(1)
    assert score.top5 == pytest.approx(float(near.double().mean()))
    assert score.loss == pytest.approx(float(F.cross_entropy(scores, TEST.labels)), rel=1e-5)
    assert score.images == len(TEST)
