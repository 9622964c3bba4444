"""Criteria that keep what the next layer writes: ThiNet and LASSO, against brute force and scikit-learn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, lasso_path
from torch import Tensor, nn
from torch.nn import functional as F

import slimilar
from slimilar.criteria import Weights, contributions
from slimilar.criteria.contributions import contribution_grams
from slimilar.criteria.lasso import lasso_path as knots
from slimilar.criteria.lasso import removal_sequence
from slimilar.criteria.thinet import greedy
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder


def design(rows: int = 200, columns: int = 9, seed: int = 0) -> np.ndarray:
    """Return correlated columns of different sizes."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(rows, columns)) @ (
        np.eye(columns) + 0.4 * random.normal(size=(columns, columns))
    )
    return mixed * np.linspace(0.2, 2, columns)


def at(path: Sequence[tuple[float, np.ndarray]], strength: float) -> np.ndarray:
    """Return the solution between two knots."""
    falling = np.array([s for s, _ in path])
    return np.array([np.interp(-strength, -falling, column) for column in np.array([b for _, b in path]).T])


# --- LASSO ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_that_of_scikit_learn(seed: int) -> None:
    x = design(seed=seed)
    y = x @ np.random.default_rng(seed + 10).normal(size=9)
    path = list(knots(x.T @ x / 200, x.T @ y / 200))
    strengths = path[0][0] * np.array([1.1, 0.9, 0.5, 0.2, 0.05, 0.01, 0.001])
    for strength in strengths:
        fitted = Lasso(alpha=strength, fit_intercept=False, tol=1e-12, max_iter=1_000_000).fit(x, y)
        mine = at(path, strength)
        assert mine == pytest.approx(fitted.coef_, abs=1e-6)
        assert (np.abs(mine) > 1e-9).sum() == (np.abs(fitted.coef_) > 1e-9).sum()
    _, theirs, _ = lasso_path(x, y, alphas=strengths[1:], tol=1e-12, max_iter=1_000_000)
    assert pytest.approx(theirs, abs=1e-6) == np.array([at(path, s) for s in strengths[1:]]).T
    assert path[-1][1] == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0])


def test_a_path_on_which_a_channel_comes_and_goes() -> None:
    drops = 0
    for seed in range(20):
        x = design(40, 12, seed)
        y = x @ np.random.default_rng(seed).normal(size=12)
        path = list(knots(x.T @ x / 40, x.T @ y / 40))
        drops += sum(bool(((a != 0) & (b == 0)).any()) for (_, a), (_, b) in itertools.pairwise(path))
        strength = path[0][0] * 0.02
        fitted = Lasso(alpha=strength, fit_intercept=False, tol=1e-13, max_iter=1_000_000).fit(x, y)
        assert at(path, strength) == pytest.approx(fitted.coef_, abs=1e-5)
    assert drops > 0


def test_the_channels_kept_are_those_that_lasso_keeps() -> None:
    x = design(400, 8, seed=3)
    y = x.sum(1)
    order = removal_sequence(x.T @ x / 400)
    tried = Lasso(alpha=1.0, fit_intercept=False, tol=1e-12, max_iter=1_000_000)
    for strength in np.geomspace(1e-3, 1e2, 60):
        kept = np.flatnonzero(np.abs(tried.set_params(alpha=strength).fit(x, y).coef_) > 1e-7)
        assert set(kept) == set(order[8 - len(kept) :].tolist())


def test_silent_channels_and_copies_leave_first() -> None:
    x = design(300, 6, seed=1)
    x[:, 4] = 0
    gram = x.T @ x / 300
    assert removal_sequence(gram)[0] == 4
    copied = x[:, [0, 1, 2, 3, 5, 5]]
    last = set(removal_sequence(copied.T @ copied / 300)[1:].tolist())
    assert len(last & {4, 5}) == 1  # one of the two is not needed at all
    assert sorted(removal_sequence(np.zeros((3, 3))).tolist()) == [0, 1, 2]


# --- ThiNet ---------------------------------------------------------------------------------------------------------


def test_the_greedy_step_is_that_of_brute_force() -> None:
    parts = design(100, 7, seed=2)
    order = greedy(parts.T @ parts, np.arange(7)).tolist()
    gone: list[int] = []
    for step in range(7):
        lost = {c: float((parts[:, [*gone, c]].sum(1) ** 2).sum()) for c in range(7) if c not in gone}
        assert order[step] == min(lost, key=lambda c: lost[c])
        gone.append(order[step])


def test_what_has_to_stay_stays() -> None:
    parts = design(100, 7, seed=2)
    assert sorted(greedy(parts.T @ parts, np.array([1, 3, 4])).tolist()) == [1, 3, 4]


# --- what consumers see -----------------------------------------------------------------------------------------------


class Spy:
    name = "spy"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        self.groups, self.weights = groups, weights
        assert weights.calibration is not None
        self.grams = contribution_grams(groups, weights, weights.calibration)
        return ["seen"] * len(groups)


def seen(net: nn.Module, x: Tensor) -> Spy:
    spy = Spy()
    slimilar.analyze(net, x[:1], criterion=spy, calibration=x)
    return spy


READERS = {
    "convolution": lambda: nn.Conv2d(6, 5, 3, padding=1, stride=2),
    "pointwise": lambda: nn.Conv2d(6, 5, 1),
    "in groups": lambda: nn.Conv2d(6, 4, 3, padding=1, groups=2),
}


@pytest.mark.parametrize("consumer", READERS)
def test_contributions_add_up_to_what_the_reader_writes(
    consumer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "_FEWEST", 10**9)  # every place
    monkeypatch.setattr(contributions, "_OUTPUTS", 10**9)  # every output
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), READERS[consumer](), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).double()
    if consumer != "in groups":
        net[4] = nn.Conv2d(5, 2, 1).double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    spy = seen(net, x)
    with torch.no_grad():
        held, conv = net[:2](x), net[2]
        parts = []
        for channels in spy.groups[0].channels:  # two in a unit where the consumer has two groups
            alone = torch.zeros_like(held)
            alone[:, channels] = held[:, channels]
            parts.append(
                F.conv2d(alone, conv.weight, None, conv.stride, conv.padding, 1, conv.groups).flatten()
            )
        wanted = torch.stack(parts) @ torch.stack(parts).T
    assert spy.grams[0] == pytest.approx((wanted / wanted.sum()).numpy(), rel=1e-9)


def test_a_linear_reader_behind_a_flattening_and_a_concatenation() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 3, 1), nn.Linear(7 * 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.left(x).relu(), self.right(x).relu()], 1).flatten(1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net, x = Net().double(), torch.randn(40, 3, 2, 2, dtype=torch.float64)
    left, right = seen(net, x).grams
    with torch.no_grad():
        held = net.right(x).relu().flatten(2)
        weight = net.head.weight[:, 16:].reshape(3, 3, 4)
        parts = torch.einsum("ncp,ocp->cno", held, weight).flatten(1)
        wanted = parts @ parts.T
    assert left is not None
    assert left.shape == (4, 4)
    assert right == pytest.approx((wanted / wanted.sum()).numpy(), rel=1e-9)


@pytest.mark.parametrize("name", ["thinet", "channel-lasso"])
def test_a_channel_that_is_not_needed_leaves_first(name: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten()
    ).eval()
    with torch.no_grad():
        net[3].weight[:, 2] = 0  # nobody listens
        net[1].bias[4] = -100  # nobody speaks
    x = torch.randn(16, 3, 6, 6)
    plan = slimilar.analyze(net, x[:1], criterion=name, calibration=x)
    assert set(plan.orders[0].removed[:2].tolist()) == {2, 4}
    again = slimilar.analyze(net, x[:1], criterion=name, calibration=x)
    assert np.array_equal(plan.orders[0].removed, again.orders[0].removed)
    result = slimilar.prune(net, x[:1], ratio=0.34, criterion=name, calibration=x, substitute="linear")
    with torch.no_grad():
        assert torch.allclose(result.model(x), net(x), atol=1e-3)
