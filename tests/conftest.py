"""What all tests share: the same examples and the same random numbers every time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# A deadline fails on a busy machine, and a random example on somebody else's.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
