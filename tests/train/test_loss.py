"""The loss against its formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from slimilar.errors import InvalidInput
from slimilar.train import (
    Distillation,
    training_loss,
)


def test_distillation_is_hintons():
    scores, teacher = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    labels = torch.arange(6) % 4
    soft_teacher, soft = (teacher / 3).softmax(1), (scores / 3).log_softmax(1)
    divergence = (soft_teacher * (soft_teacher.log() - soft)).sum() / 6
    expected = 0.4 * F.cross_entropy(scores, labels) + 0.6 * 9 * divergence
    got = training_loss(scores, labels, 0.0, teacher, Distillation(temperature=3, weight=0.6))
    torch.testing.assert_close(got, expected)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it():
    scores, labels = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    alone = training_loss(scores, labels, 0.0, scores, Distillation(weight=1))
    assert abs(alone) < 1e-6


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"weight": 1.5}])
def test_wrong_distillation(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        Distillation(**wrong)
