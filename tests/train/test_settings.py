"""Settings that mean nothing are refused."""

from __future__ import annotations

import pytest
import torch

from slimilar.errors import InvalidInput
from slimilar.train import (
    TrainingSettings,
)


def test_cpu_never_gets_bfloat16_by_itself():
    assert TrainingSettings().autocast_dtype(torch.device("cpu")) is None
    assert TrainingSettings(precision="bfloat16").autocast_dtype(torch.device("cpu")) is torch.bfloat16


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"precision": "half"}, {"save_every": 0}, {"log_every": 0}])
def test_wrong_settings(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must"):
        TrainingSettings(**wrong)
