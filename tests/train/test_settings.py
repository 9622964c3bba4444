"""Settings that mean nothing are refused."""

from __future__ import annotations

import pytest
import torch

from slimilar.errors import InvalidInput
from slimilar.train import TrainingSettings, settings


def test_cpu_never_gets_bfloat16_by_itself(monkeypatch):
    monkeypatch.setattr(settings, "cpu_has_bfloat16", lambda: True)
    assert TrainingSettings().autocast_dtype(torch.device("cpu")) is None
    assert TrainingSettings(precision="bfloat16").autocast_dtype(torch.device("cpu")) is torch.bfloat16


def test_a_cpu_without_bfloat16_is_told_before_it_is_used(monkeypatch):
    """Otherwise the process would be killed by an illegal instruction, without a word."""
    monkeypatch.setattr(settings, "cpu_has_bfloat16", lambda: False)
    with pytest.raises(
        InvalidInput, match=r"needs a CPU that supports it, .* illegal instruction; use float32"
    ):
        TrainingSettings(precision="bfloat16").autocast_dtype(torch.device("cpu"))


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"precision": "half"}, {"save_every": 0}, {"log_every": 0}])
def test_wrong_settings(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must"):
        TrainingSettings(**wrong)
