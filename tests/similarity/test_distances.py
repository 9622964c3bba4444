"""How unlike channels are: Eq. 4 and Eq. 1 against plain loops, and what normalisation makes of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.batch_norms import layer, seeds
from slimilar.errors import InvalidInput
from slimilar.similarity.distances import activation_distance, channel_distance, is_uninformative, normalise
from slimilar.similarity.linkage import linkage_tree

# --- Eq. 4


def test_distance_is_the_equation():
    beta, gamma = layer(7)
    distance = channel_distance(beta, gamma)
    for i in range(7):
        for j in range(7):
            want = (beta[i].item() - beta[j].item()) ** 2 + gamma[i].item() ** 2 + gamma[j].item() ** 2
            assert distance[i, j].item() == pytest.approx(0 if i == j else want, rel=1e-12)


def test_distance_is_what_independent_gaussians_show():
    beta, gamma = layer(5)
    samples = beta + gamma * torch.randn(400_000, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        activation_distance(samples), channel_distance(beta, gamma), rtol=2e-2, atol=1e-3
    )


@given(seeds, st.integers(1, 20))
def test_distance_is_symmetric_and_follows_a_permutation(seed, n):
    beta, gamma = layer(n, seed)
    distance = channel_distance(beta, gamma)
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(distance, distance.T)
    assert torch.equal(channel_distance(beta[shuffle], gamma[shuffle]), distance[shuffle][:, shuffle])


def test_distance_takes_half_precision_and_parameters():
    half = channel_distance(torch.tensor([300.0, 0.0]).half(), nn.Parameter(torch.ones(2).half()))
    assert half.tolist() == [[0.0, 90002.0], [90002.0, 0.0]]  # beyond the largest half
    assert not half.requires_grad


@pytest.mark.parametrize(
    ("beta", "gamma", "words"),
    [
        (torch.zeros(3), torch.zeros(4), r"shape \(channels,\), got \(3,\) and \(4,\)"),
        (torch.zeros(2, 2), torch.zeros(2, 2), r"got \(2, 2\) and \(2, 2\)"),
        (torch.tensor([math.nan]), torch.zeros(1), "must be finite"),
        (torch.zeros(1), torch.tensor([math.inf]), "has training diverged"),
    ],
)
def test_distance_refuses(beta, gamma, words):
    with pytest.raises(InvalidInput, match=words):
        channel_distance(beta, gamma)


# --- Eq. 1


def plain_distance(activations: Tensor) -> Tensor:
    """Eq. 1 as it is printed: every pair in full."""
    samples = activations.double().movedim(1, 0).flatten(1)
    return (samples[:, None] - samples).square().mean(dim=2)


@pytest.mark.parametrize("shape", [(64, 6), (5, 6, 7), (3, 6, 4, 5), (2, 6, 3, 3, 3)])
def test_activation_distance_is_the_equation(shape):
    activations = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        activation_distance(activations), plain_distance(activations), rtol=1e-10, atol=1e-14
    )


@given(seeds, st.integers(1, 8), st.integers(1, 9))
@settings(max_examples=40)
def test_batches_give_what_the_whole_gives(seed, channels, size):
    activations = torch.randn(17, channels, 3, generator=torch.Generator().manual_seed(seed))
    in_batches = activation_distance(batch for batch in activations.split(size))
    torch.testing.assert_close(in_batches, plain_distance(activations), rtol=1e-10, atol=1e-14)


def test_activation_distance_survives_cancellation():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1000, 4, generator=generator, dtype=torch.float64)
    activations = 1e6 + torch.tensor([0.0, 1e-3, 2e-3, 1e3], dtype=torch.float64) + 1e-4 * noise
    found = activation_distance(activations.split(100))
    torch.testing.assert_close(found, plain_distance(activations), rtol=1e-6, atol=0)


@given(seeds, st.floats(-1e6, 1e6), st.integers(2, 40), st.integers(1, 300))
@settings(max_examples=40)
def test_equal_channels_are_at_exactly_zero(seed, offset, copies, samples):
    generator = torch.Generator().manual_seed(seed)
    one = offset + torch.randn(samples, 2, generator=generator)
    found = activation_distance(one.repeat(1, copies).split(64))
    assert (found[0::2, 0::2] == 0).all()
    assert (found[1::2, 1::2] == 0).all()
    assert (found >= 0).all()
    assert torch.equal(found, found.T)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "at least one batch"),
        (torch.zeros(3), r"tensor \(batch, channels, ...\), got \(3,\)"),
        ([torch.zeros(0, 3)], r"non-empty tensor.*got \(0, 3\)"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "must have 3 channels, got 4"),
        ([torch.full((2, 3), math.nan)], "finite"),
        ([[1.0, 2.0]], "got list"),
    ],
)
def test_bad_activations_are_refused(batches, words):
    with pytest.raises(InvalidInput, match=words):
        activation_distance(batches)


# --- normalisation


def test_normalise_uses_the_whole_of_0_to_1_off_the_diagonal():
    distance = normalise(channel_distance(*layer(9)))
    off_diagonal = distance[~torch.eye(9, dtype=torch.bool)]
    assert off_diagonal.min() == 0
    assert off_diagonal.max() == 1
    assert torch.equal(distance.diagonal(), torch.zeros(9, dtype=torch.float64))


def test_normalise_leaves_its_input_alone():
    distance = channel_distance(*layer(4))
    before = distance.clone()
    normalise(distance)
    assert torch.equal(distance, before)


@pytest.mark.parametrize(
    ("beta", "gamma"),
    [
        (torch.zeros(8), torch.ones(8)),  # as PyTorch makes a batch norm
        (torch.zeros(8), torch.zeros(8)),
        (torch.full((8,), 1e-4), torch.full((8,), 0.3)),
        (torch.zeros(8), 1 + 1e-7 * torch.randn(8, generator=torch.Generator().manual_seed(0))),
        (torch.zeros(1), torch.ones(1)),
        (torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0])),  # two channels: one distance
    ],
)
def test_a_constant_matrix_is_uninformative(beta, gamma):
    distance = channel_distance(beta, gamma)
    assert is_uninformative(distance)
    with pytest.raises(InvalidInput, match="keep such a layer whole"):
        normalise(distance)


def test_a_trained_layer_is_informative():
    assert not is_uninformative(channel_distance(*layer(3)))
    assert not is_uninformative(channel_distance(1e-6 * torch.arange(3), torch.zeros(3)))


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (torch.zeros(2, 3), r"shape \(channels, channels\), got \(2, 3\)"),
        (torch.zeros(0, 0), r"got \(0, 0\)"),
        (torch.tensor([[0.0, math.nan], [math.nan, 0.0]]), "finite"),
        (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), "not negative"),
        (torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "symmetric"),
    ],
)
@pytest.mark.parametrize("function", [normalise, is_uninformative, linkage_tree])
def test_a_bad_matrix_is_refused(function, distance, words):
    with pytest.raises(InvalidInput, match=words):
        function(distance)
