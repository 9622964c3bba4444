"""Batch norms as training might leave them, made up by seed."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**32 - 1)


def layer(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return beta and gamma of a made-up trained batch norm."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator)
