"""The part of a tree below a threshold is the part that the whole tree has there."""

import numpy as np
import pytest
import torch
from torch import nn

import slimilar
from slimilar.similarity.distances import normalise, pair_distances
from slimilar.similarity.linkage import linkage_tree, removal_order
from slimilar.similarity.partial_linkage import PartialLinkage
from slimilar.similarity.removal_order import clusters, clusters_after


def layer(seed, kind, linkage):
    rng = np.random.default_rng(seed)
    n, norms = int(rng.integers(65, 200)), int(rng.integers(1, 4))
    beta, gamma = rng.normal(0, 0.5, (n, norms)), rng.uniform(0.01, 1.5, (norms, n))
    if kind == "round":
        beta, gamma = beta.round(1), gamma.round(1)
    if kind == "half":
        beta, gamma = (x.astype(np.float16).astype(np.float64) for x in (beta, gamma))
    if kind == "dead":
        beta[: n // 2], gamma[:, : n // 2] = 0, 0
    if kind == "one gamma":
        gamma[:] = 1
    return PartialLinkage(np.arange(n), beta, np.square(gamma).sum(0), gamma.sum(0), linkage)


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("kind", ["any", "round", "half", "dead", "one gamma"])
def test_steps_below_a_threshold_are_those_of_the_whole_tree(kind, linkage):
    told = 0
    for seed in range(20):
        one = layer(seed, kind, linkage)
        pairs = pair_distances(one.means, one.variance)
        assert one.range == (pairs.min(), pairs.max())
        whole = removal_order(linkage_tree(normalise(pairs), linkage), one.size)
        for threshold in (
            0,
            0.02,
            0.1,
            0.4,
            1,
            float(whole.heights[20]),
            float(np.nextafter(whole.heights[9], 2)),
        ):
            part = one.below(threshold)
            if part is not None:
                told += 1
                n = len(one.units)
                assert clusters_after(part, len(part), n) == clusters(whole, threshold, n)
    assert told > 50


def test_the_whole_order_is_that_of_all_pairs():
    one = layer(0, "any", "average")
    order = one.whole()
    expected = removal_order(linkage_tree(normalise(pair_distances(one.means, one.variance))), one.size)
    assert len(order) == len(one) == len(expected)
    assert np.array_equal(order.heights, expected.heights)
    assert np.array_equal(order.removed, expected.removed)
    assert np.array_equal(order.representative, expected.representative)


def test_channels_that_stay_alone_are_not_clustered():
    one = layer(3, "any", "average")
    sizes = []
    spy = PartialLinkage.__dict__["_order"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PartialLinkage,
            "_order",
            lambda self, close, tree: sizes.append(len(close)) or spy(self, close, tree),
        )
        one.below(0.05)
    assert sizes
    assert sizes[0] < len(one.units)


def test_a_threshold_at_a_height_is_left_to_the_whole_order():
    one = layer(1, "any", "average")
    assert one.below(float(one.whole().heights[5])) is None


def test_pruning_by_a_threshold_is_the_cut_of_the_whole_plan():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 96, 3), nn.BatchNorm2d(96), nn.ReLU(), nn.Conv2d(96, 80, 3), nn.BatchNorm2d(80)
    )
    net.append(nn.Conv2d(80, 4, 1))
    for norm in (net[1], net[4]):
        nn.init.uniform_(norm.weight, 0.1, 1.5)
        nn.init.normal_(norm.bias, 0, 0.5)
    plan = slimilar.analyze(net, torch.zeros(1, 3, 8, 8))
    for threshold in (0.0, 0.03, 0.1, 0.5, 1.0):
        early = slimilar.analyze(net, torch.zeros(1, 3, 8, 8)).at(threshold)
        plan.curve()  # looks at all orders
        late = plan.at(threshold)
        assert early.kept == late.kept
        assert dict(early.clusters) == dict(late.clusters)
        assert early.cost == late.cost
