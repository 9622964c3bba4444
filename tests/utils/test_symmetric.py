"""Symmetric matrices by blocks against plain products."""

from __future__ import annotations

import pytest
import torch

from slimilar.utils.symmetric import quadratic_forms, symmetric

SIZES = (1, 128, 129, 300)


@pytest.mark.parametrize("size", SIZES)
def test_products(size):
    x = torch.randn(size, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(symmetric(size, lambda some, others: x[some] @ x[others].T), x @ x.T)


@pytest.mark.parametrize("size", SIZES)
def test_quadratic_forms(size):
    generator = torch.Generator().manual_seed(0)
    rows, root = (torch.randn(n, size, dtype=torch.float64, generator=generator) for n in (5, size))
    matrix = root.T @ root
    assert torch.allclose(quadratic_forms(rows, matrix), ((rows @ matrix) * rows).sum(1))
