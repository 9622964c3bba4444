"""Any PyTorch dataset as a source of batches."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from slimilar.data import (
    DatasetSource,
)
from slimilar.errors import DataError


def test_samples_draw_the_same_numbers_for_the_same_draws():
    class Noisy(TensorDataset):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image + torch.rand(()), int(label)

    source = DatasetSource(Noisy(torch.zeros(6, 1, 2, 2), torch.arange(6)))
    state = torch.get_rng_state()
    first = source.batch(torch.tensor([1, 2]), torch.tensor([[0.1] * 5, [0.2] * 5]))
    again = source.batch(torch.tensor([2]), torch.tensor([[0.2] * 5]))
    other = source.batch(torch.tensor([2]), torch.tensor([[0.3] * 5]))
    assert torch.equal(first[0][1:], again[0])
    assert not torch.equal(other[0], again[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert first[1].tolist() == [1, 2]


def test_samples_that_are_no_pairs():
    with pytest.raises(DataError, match=r"sample 1 must be an \(image, label\) pair"):
        DatasetSource(TensorDataset(torch.zeros(4, 1, 2, 2))).batch(torch.tensor([1]))
