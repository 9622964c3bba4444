"""Properties that hold for every network: here over random ones, made of all operators that there is a rule for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import slimilar
from helpers.networks import STEPS, Network
from slimilar.graph.structure import Structure
from slimilar.planning.cost import cost_model
from slimilar.surgery.probe import find_structure
from slimilar.surgery.rewrite import operate, surgery
from slimilar.surgery.verify import verify

FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=3000, suppress_health_check=list(HealthCheck))
X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

networks = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6).map(Network)
modes = st.sampled_from(["inner", "select", "joint"])


def some_mask(structure: Structure, seed: int) -> np.ndarray:
    """Remove a random part of every group, but nothing that has to stay, and not down to a single channel.

    (There torch runs other operators: an einsum over one channel is a product, and counts as one.)
    """
    random = np.random.default_rng(seed)
    mask = np.ones(structure.grouping.unit_count, np.bool_)
    for start, group in zip(structure.grouping.offsets, structure.grouping.groups, strict=True):
        free = [u for u in range(group.width) if u not in group.fixed]
        most = max(0, len(free) - max(0, 2 - len(group.fixed)))
        mask[start + random.choice(free, random.integers(0, most + 1), replace=False)] = False
    return mask


def check_masked(model: nn.Module, mode: str, seed: int) -> None:
    """The smaller network equals the masked original, and costs what was said before it was built."""
    structure = find_structure(model, X, mode)
    mask = some_mask(structure, seed)
    small = operate(model, surgery(structure.trace, structure.grouping, mask))
    assert verify(model, small, X, structure.trace, structure.grouping, mask) < 1e-9
    said = cost_model(structure.trace, structure.grouping).at(mask)
    found = slimilar.count(small, X)
    assert (said.flops, said.macs, said.params) == (found.flops, found.macs, found.params)


def check_identity(model: nn.Module, mode: str) -> None:
    """At threshold 0 nothing changes."""
    try:
        result = slimilar.prune(model, X, threshold=0.0, residual=mode, substitute="none")
    except slimilar.errors.NothingToPrune:
        return
    assert torch.equal(result.model(X), model(X))
    assert all(a.shape == b.shape for a, b in zip(result.model.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_masked_is_rewritten_for_each_step(step):
    check_masked(Network(["conv", step, "conv"]), "joint", seed=1)


@pytest.mark.parametrize(
    ("steps", "mode"),
    [
        (["instance norm", "half by shape", "max pool", "slice by number", "depthwise"], "joint"),
        (["half and rest", "slice by number"], "joint"),  # the first channel alone lies in front of a cut
        (["squeeze and excite", "split attention"], "joint"),  # one group's width is taken for another's
        (["split attention", "padded shortcut"], "joint"),  # the same, of groups that are not equally wide
        (["padded shortcut", "batch norm", "batch norm"], "select"),  # the second reads what the first chose
        (
            ["einsum", "conv", "linear"],
            "inner",
        ),  # strides, and with them operators, are others on the meta device
    ],
)
def test_networks_that_were_once_cut_wrongly(steps, mode):
    for seed in range(4):
        check_masked(Network(steps), mode, seed)


@pytest.mark.slow
@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", STEPS)
def test_masked_is_rewritten_for_each_pair_of_steps(first, second):
    check_masked(Network([first, second]), "joint", seed=2)


@FEW
@given(networks, modes, st.integers(0, 99))
def test_masked_is_rewritten(model, mode, seed):
    check_masked(model, mode, seed)


@pytest.mark.slow
@MANY
@given(networks, modes, st.integers(0, 99))
def test_masked_is_rewritten_for_thousands(model, mode, seed):
    check_masked(model, mode, seed)


def test_parts_of_a_norm_without_tensors_are_known_by_themselves():
    check_identity(Network(["branches", "instance norm"]), "inner")


@FEW
@given(networks, modes)
def test_nothing_changes_at_zero(model, mode):
    check_identity(model, mode)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(networks, modes)
def test_nothing_changes_at_zero_for_hundreds(model, mode):
    check_identity(model, mode)


def plain(gamma: list[float], beta: list[float]) -> nn.Sequential:
    """Return a convolution with this batch norm, and two consumers."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, len(gamma), 3), nn.BatchNorm2d(len(gamma)), nn.ReLU(), nn.Conv2d(len(gamma), 4, 3)
    ).double()
    net[1].weight.data[:], net[1].bias.data[:] = torch.tensor(gamma), torch.tensor(beta)
    net[1].running_mean.normal_()
    return net.eval()


numbers = st.floats(0.1, 2.0).map(lambda v: round(v, 3))
norms = st.lists(st.tuples(numbers, numbers), min_size=3, max_size=9, unique_by=lambda m: m[0])


@settings(max_examples=30)
@given(norms, st.randoms(use_true_random=False), st.floats(0.05, 0.95))
def test_permuted_channels_permute_the_answer(moments, random, threshold):
    net = plain(*map(list, zip(*moments, strict=True)))
    order = list(range(len(moments)))
    random.shuffle(order)
    other = plain(*map(list, zip(*(moments[i] for i in order), strict=True)))
    a = slimilar.analyze(net, X)
    b = slimilar.analyze(other, X)
    if not a.groups or not b.groups or len(set(a.orders[0].heights)) < len(a.orders[0].heights):
        return  # all distances are equal, or a tie is decided by the lowest index
    kept = a.at(threshold).kept["0"]
    assert sorted(order[i] for i in b.at(threshold).kept["0"]) == list(kept)


@settings(max_examples=15)
@given(st.sets(st.integers(0, 7), min_size=1, max_size=6))
def test_dead_channels_leave_no_trace(dead):
    net = plain([1.0 + i / 10 for i in range(8)], [0.3] * 8)
    for channel in dead:
        net[1].weight.data[channel] = net[1].bias.data[channel] = 0
    small = slimilar.remove_channels(net, X, {"0": sorted(dead)})
    assert small[0].out_channels == 8 - len(dead)
    torch.testing.assert_close(small(X), net(X))
