"""Proposition 2: what really removing a channel shifts, and the bound that it never exceeds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from helpers.batch_norms import layer, seeds
from slimilar.errors import InvalidInput
from slimilar.similarity.distances import activation_distance, shift_bound


def measured_shift(normalised: Tensor, weight: Tensor, activation, **convolution) -> Tensor:
    """Really remove every channel i in favour of its nearest one; return the shift for each (out, i)."""
    nearest = activation_distance(normalised).fill_diagonal_(math.inf).argmin(dim=1)
    before = F.conv2d(activation(normalised), weight, **convolution)
    shifts = []
    for i, j in enumerate(nearest.tolist()):
        merged = weight.clone()
        merged[:, j] += merged[:, i]
        merged[:, i] = 0
        after = F.conv2d(activation(normalised), merged, **convolution)
        shifts.append((before - after).square().mean(dim=(0, 2, 3)))
    return torch.stack(shifts, dim=1)


@pytest.mark.parametrize("activation", [F.relu, torch.sigmoid, lambda x: x], ids=["relu", "sigmoid", "none"])
@given(
    seed=seeds,
    channels=st.integers(2, 5),
    kernel=st.sampled_from([1, 2, 3]),
    stride=st.sampled_from([1, 2]),
    padding=st.sampled_from([0, 1, 2]),
    dilation=st.sampled_from([1, 2]),
)
@settings(max_examples=25, deadline=None)
def test_the_measured_shift_never_exceeds_the_bound(
    activation, seed, channels, kernel, stride, padding, dilation
):
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(3, channels, 6, 7, generator=generator, dtype=torch.float64)
    beta, gamma = (parameter.double() for parameter in layer(channels, seed))
    normalised = F.batch_norm(raw, None, None, gamma, beta, training=True)
    weight = torch.randn(4, channels, kernel, kernel, generator=generator, dtype=torch.float64)
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    shift = measured_shift(normalised, weight, activation, **options)
    n_out = F.conv2d(normalised, weight, **options)[:, 0].numel()
    factor, bound = shift_bound(weight, activation_distance(normalised), normalised[:, 0].numel(), n_out)
    assert factor.shape == bound.shape == (4, channels)
    assert (shift <= bound * (1 + 1e-9)).all()


def test_the_bound_is_tight_for_a_pointwise_kernel():
    normalised = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.tensor([[2.0, -1.0, 0.5]]).double()[:, :, None, None]
    bound = shift_bound(weight, activation_distance(normalised), 32, 32).bound
    torch.testing.assert_close(measured_shift(normalised, weight, lambda x: x), bound)


def test_the_bound_takes_a_linear_layer():
    factor, bound = shift_bound(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]]), 8, 8)
    assert factor.tolist() == [[9.0, 0.0]]
    assert bound.tolist() == [[18.0, 0.0]]


@pytest.mark.parametrize(
    ("weight", "distance", "n", "words"),
    [
        (torch.zeros(4), torch.zeros(4, 4), 1, r"got \(4,\) and \(4, 4\)"),
        (torch.zeros(2, 3, 1, 1), torch.zeros(4, 4), 1, r"got \(2, 3, 1, 1\) and \(4, 4\)"),
        (torch.zeros(2, 1), torch.zeros(1, 1), 1, "in > 1"),
        (torch.zeros(2, 3), torch.zeros(3, 3), 0, "must be positive, got 0 and 0"),
    ],
)
def test_the_bound_refuses(weight, distance, n, words):
    with pytest.raises(InvalidInput, match=words):
        shift_bound(weight, distance, n, n)
