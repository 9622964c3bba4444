"""Trees, removal orders and clusters, against SciPy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from helpers.batch_norms import layer, seeds
from slimilar.errors import InvalidInput
from slimilar.similarity.distances import channel_distance, normalise
from slimilar.similarity.linkage import linkage_tree, removal_order
from slimilar.similarity.removal_order import (
    NO_REPRESENTATIVE,
    RemovalOrder,
    clusters,
    clusters_after,
    kept_after,
    representatives,
)

LINKAGES = ["average", "complete", "single"]


def order_of(beta: Tensor, gamma: Tensor, linkage="average") -> RemovalOrder:
    return removal_order(linkage_tree(normalise(channel_distance(beta, gamma)), linkage), gamma)


def partition(labels) -> set[frozenset[int]]:
    """Return cluster labels as a set of sets, so that their names do not matter."""
    groups: dict[int, set[int]] = {}
    for channel, label in enumerate(labels):
        groups.setdefault(int(label), set()).add(channel)
    return {frozenset(group) for group in groups.values()}


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
    for removed, representative in zip(order.removed, order.representative, strict=True):
        kept.remove(int(removed))
        assert int(representative) in kept
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
def test_identical_channels_merge_first_and_the_lowest_index_represents_them(linkage):
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
    with pytest.raises(InvalidInput, match="threshold must be a number from 0 to 1, got"):
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


def test_a_channel_may_have_no_representative():
    order = RemovalOrder([3, 0, 1], [0.1, 0.2, 0.3], [NO_REPRESENTATIVE, 1, 2])
    assert clusters_after(order, 0, 4) == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (3,))]
    assert clusters_after(order, 3, 4) == [(2, (0, 1, 2))]
    assert clusters_after(RemovalOrder([3, 0], [0, 0], [0, NO_REPRESENTATIVE]), 2, 4) == [
        (1, (1,)),
        (2, (2,)),
    ]


@pytest.mark.parametrize(
    ("removed", "heights", "representative", "words"),
    [
        ([0, 1], [0.1], [2, 2], "the same length"),
        ([[0]], [[0.1]], [[2]], "the same length"),
        ([0, 1], [0.2, 0.1], [2, 2], "never decrease"),
        ([0, 1], [0.1, math.nan], [2, 2], "never decrease"),
        ([0, 0], [0.1, 0.2], [2, 2], "at most once"),
        ([-1, 0], [0.1, 0.2], [2, 2], "negative index"),
        ([0, 1], [0.1, 0.2], [2, 0], "got channel 0 at step 1"),
        ([0], [0.1], [0], "got channel 0 at step 0"),
        ([0], [0.1], [-2], "got -2"),
    ],
)
def test_an_impossible_order_is_refused(removed, heights, representative, words):
    with pytest.raises(InvalidInput, match=words):
        RemovalOrder(removed, heights, representative)


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


def test_the_earlier_name_of_the_representatives_still_works():
    order = RemovalOrder([2, 0], [0.1, 0.4], [0, 1])
    assert order.stand_in is order.representative
