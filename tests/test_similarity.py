"""Distances, trees and clusters, against SciPy, scikit-learn and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn
from torch.nn import functional as F

from slimilar.errors import InvalidInput
from slimilar.similarity import (
    NOBODY,
    RemovalOrder,
    activation_distance,
    channel_distance,
    clusters,
    clusters_after,
    is_uninformative,
    kept_after,
    linkage_tree,
    normalise,
    removal_order,
    representatives,
    shift_bound,
)

LINKAGES = ["average", "complete", "single"]
seeds = st.integers(0, 2**32 - 1)


def layer(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return beta and gamma of a made-up trained batch norm."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator)


def order_of(beta: Tensor, gamma: Tensor, linkage="average") -> RemovalOrder:
    return removal_order(linkage_tree(normalise(channel_distance(beta, gamma)), linkage), gamma)


def partition(labels) -> set[frozenset[int]]:
    """Return cluster labels as a set of sets, so that their names do not matter."""
    groups: dict[int, set[int]] = {}
    for channel, label in enumerate(labels):
        groups.setdefault(int(label), set()).add(channel)
    return {frozenset(group) for group in groups.values()}


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


# --- trees, orders and clusters


@pytest.mark.parametrize("linkage", LINKAGES)
@given(seed=seeds, n=st.integers(3, 25), threshold=st.floats(0, 1))
@settings(max_examples=60)
def test_clusters_are_those_of_scipy(linkage, seed, n, threshold):
    beta, gamma = layer(n, seed)
    tree = linkage_tree(normalise(channel_distance(beta, gamma)), linkage)
    found = clusters(removal_order(tree, gamma), threshold, n)
    want = fcluster(tree, np.nextafter(threshold, -1), criterion="distance")  # strictly below
    assert {frozenset(cluster.members) for cluster in found} == partition(want)


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_clusters_are_those_of_scikit_learn(linkage, threshold):
    beta, gamma = layer(40)
    distance = normalise(channel_distance(beta, gamma))
    rival = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage=linkage, distance_threshold=threshold
    )
    found = clusters(order_of(beta, gamma, linkage), threshold, 40)
    assert {frozenset(cluster.members) for cluster in found} == partition(rival.fit_predict(distance.numpy()))


@pytest.mark.parametrize("linkage", LINKAGES)
def test_a_cut_at_a_height_leaves_that_merge_out(linkage):
    beta, gamma = layer(12)
    order = order_of(beta, gamma, linkage)
    for step, height in enumerate(order.heights):
        assert order.steps(min(height, 1.0)) == step  # no two heights are equal here
        assert len(representatives(order, min(height, 1.0), 12)) == 12 - step


@given(seeds, st.integers(3, 25), st.sampled_from(LINKAGES))
@settings(max_examples=60)
def test_an_order_has_nested_kept_sets_and_rising_heights(seed, n, linkage):
    beta, gamma = layer(n, seed)
    order = order_of(beta, gamma, linkage)
    assert len(order) == n - 1
    assert (np.diff(order.heights) >= 0).all()
    assert order.heights[0] >= 0
    assert order.heights[-1] <= 1 + 1e-12
    kept = set(range(n))
    for removed, stand_in in zip(order.removed, order.stand_in, strict=True):
        kept.remove(int(removed))
        assert int(stand_in) in kept
    assert kept == {int(gamma.abs().argmax())}


@given(seeds, st.integers(3, 25), st.floats(0, 1), st.sampled_from(LINKAGES))
@settings(max_examples=60)
def test_a_representative_has_the_largest_gamma_of_its_cluster(seed, n, threshold, linkage):
    beta, gamma = layer(n, seed)
    order = order_of(beta, gamma, linkage)
    found = clusters(order, threshold, n)
    for representative, members in found:
        assert representative == max(members, key=lambda channel: abs(gamma[channel].item()))
    assert [cluster.representative for cluster in found] == representatives(order, threshold, n)
    assert sorted(channel for cluster in found for channel in cluster.members) == list(range(n))


@given(seeds, st.integers(3, 20), st.floats(0, 1), st.sampled_from(LINKAGES))
@settings(max_examples=60)
def test_permuting_channels_permutes_the_answer(seed, n, threshold, linkage):
    beta, gamma = layer(n, seed)
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    plain = clusters(order_of(beta, gamma, linkage), threshold, n)
    mixed = clusters(order_of(beta[shuffle], gamma[shuffle], linkage), threshold, n)
    back = {(int(shuffle[r]), frozenset(int(shuffle[m]) for m in members)) for r, members in mixed}
    assert back == {(r, frozenset(members)) for r, members in plain}


@pytest.mark.parametrize("linkage", LINKAGES)
def test_threshold_0_is_the_identity(linkage):
    beta, gamma = layer(10)
    order = order_of(beta, gamma, linkage)
    assert clusters(order, 0, 10) == [(channel, (channel,)) for channel in range(10)]
    assert representatives(order, 0.0, 10) == list(range(10))


@pytest.mark.parametrize("linkage", LINKAGES)
def test_identical_channels_merge_first_and_the_lowest_index_speaks(linkage):
    beta = torch.tensor([1.0, 0.0, 5.0, 0.0, 0.0, 9.0])
    gamma = torch.tensor([0.5, 0.0, 0.6, 0.0, -0.0, 0.7])  # 1, 3 and 4 are dead alike
    order = order_of(beta, gamma, linkage)
    assert clusters(order, 1e-9, 6) == [(0, (0,)), (1, (1, 3, 4)), (2, (2,)), (5, (5,))]
    assert order.heights[:2].tolist() == [0, 0]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_equal_distances_are_cut_alike_every_time(linkage):
    distance = 1 - torch.eye(6)
    orders = [removal_order(linkage_tree(distance, linkage), torch.ones(6)) for _ in range(2)]
    assert orders[0].removed.tolist() == orders[1].removed.tolist()
    assert kept_after(orders[0], 5, 6) == [0]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_one_and_two_channels(linkage):
    alone = removal_order(linkage_tree(torch.zeros(1, 1), linkage), torch.ones(1))
    assert len(alone) == 0
    assert clusters(alone, 1.0, 1) == [(0, (0,))]
    pair = removal_order(
        linkage_tree(torch.tensor([[0.0, 0.3], [0.3, 0.0]]), linkage), torch.tensor([1.0, -2.0])
    )
    assert clusters(pair, 0.3, 2) == [(0, (0,)), (1, (1,))]
    assert clusters(pair, 0.31, 2) == [(1, (0, 1))]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan, math.inf, "0.1", None, True])
def test_a_bad_threshold_is_refused(threshold):
    with pytest.raises(InvalidInput, match=r"threshold must be a number in \[0, 1\], got"):
        clusters(order_of(*layer(4)), threshold, 4)


def test_a_bad_linkage_is_refused():
    with pytest.raises(InvalidInput, match="one of average, complete, single, got 'ward'"):
        linkage_tree(torch.zeros(3, 3), "ward")  # type: ignore[arg-type]


def test_gamma_must_fit_the_tree():
    tree = linkage_tree(normalise(channel_distance(*layer(4))))
    with pytest.raises(InvalidInput, match=r"must hold 4 finite values.*got shape \(3,\)"):
        removal_order(tree, torch.ones(3))
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        removal_order(tree, torch.full((4,), math.nan))


def test_gamma_may_be_an_array():
    beta, gamma = layer(6)
    tree = linkage_tree(normalise(channel_distance(beta, gamma)))
    assert (
        removal_order(tree, gamma.double().numpy()).removed.tolist() == order_of(beta, gamma).removed.tolist()
    )


# --- orders that other criteria make


def test_a_channel_may_leave_with_nobody_in_its_place():
    order = RemovalOrder([3, 0, 1], [0.1, 0.2, 0.3], [NOBODY, 1, 2])
    assert clusters_after(order, 0, 4) == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (3,))]
    assert clusters_after(order, 3, 4) == [(2, (0, 1, 2))]
    assert clusters_after(RemovalOrder([3, 0], [0, 0], [0, NOBODY]), 2, 4) == [(1, (1,)), (2, (2,))]


@pytest.mark.parametrize(
    ("removed", "heights", "stand_in", "words"),
    [
        ([0, 1], [0.1], [2, 2], "as long as each other"),
        ([[0]], [[0.1]], [[2]], "as long as each other"),
        ([0, 1], [0.2, 0.1], [2, 2], "never fall"),
        ([0, 1], [0.1, math.nan], [2, 2], "never fall"),
        ([0, 0], [0.1, 0.2], [2, 2], "at most once"),
        ([-1, 0], [0.1, 0.2], [2, 2], "negative index"),
        ([0, 1], [0.1, 0.2], [2, 0], "got channel 0 at step 1"),
        ([0], [0.1], [0], "got channel 0 at step 0"),
        ([0], [0.1], [-2], "got channel -2"),
    ],
)
def test_an_impossible_order_is_refused(removed, heights, stand_in, words):
    with pytest.raises(InvalidInput, match=words):
        RemovalOrder(removed, heights, stand_in)


def test_an_order_cannot_be_changed():
    source = np.array([0, 1])
    order = RemovalOrder(source, [0.1, 0.2], [2, 2])
    source[0] = 7
    assert order.removed.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        order.removed[0] = 5


def test_steps_and_width_are_checked():
    order = RemovalOrder([0, 1], [0.1, 0.2], [2, 2])
    with pytest.raises(InvalidInput, match="between 0 and 2, got 3"):
        kept_after(order, 3, 3)
    with pytest.raises(InvalidInput, match="group's width"):
        kept_after(order, 1, 2)


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


# --- Proposition 2


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
