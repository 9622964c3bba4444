"""Random batch norms by seed, as after training."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**32 - 1)


def layer(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return beta and gamma of a random batch norm, as after training."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator)
