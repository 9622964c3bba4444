"""What readers do about channels that left: exactness where it is promised, and least squares as it should be."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar import models, replay
from slimilar.amends import substituted
from slimilar.calibration import to_batches
from slimilar.criteria import Span, available, facts
from slimilar.errors import InvalidInput
from slimilar.mirror import with_mirror_images
from slimilar.substitute import Settings, linear
from slimilar.substitute.expected import expect
from slimilar.substitute.hearing import hearing, temperature
from slimilar.substitute.patch import Samples, fit
from slimilar.substitute.solve import (
    Moments,
    backward_elimination,
    block_elimination,
    least_squares,
    mixing,
    ridge,
)
from slimilar.synthesis import _natural_noise, synthesize
from slimilar.trace import named_tensors, trace


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 64, size: int = 12) -> Tensor:
    """Smooth random pictures: neighbours alike, as in real ones."""
    noise = torch.randn(count, 3, size, size, generator=generator(7))
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * 2


def small_net(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10), nn.ReLU(),
        nn.Conv2d(10, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 1, bias=True), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    net.train()
    for _ in range(20):
        net(pictures())
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.uniform_(0.3, 1.5, generator=generator(1))
                m.bias.normal_(0, 0.5, generator=generator(2))
    return net.eval()


def duplicate(net: nn.Sequential, source: int, copies: list[int]) -> None:
    """Make channels of the first layer exact copies of another."""
    with torch.no_grad():
        for t in (net[0].weight, net[1].weight, net[1].bias, net[1].running_mean, net[1].running_var):
            t[copies] = t[source].clone()


# --- algebra ------------------------------------------------------------------------------------------------------


def test_least_squares_is_numpys() -> None:
    x = torch.randn(200, 6, dtype=torch.float64, generator=generator())
    y = torch.randn(200, 3, dtype=torch.float64, generator=generator(1))
    moments = Moments(6, beside=3)
    for seen, wanted in zip(x.split(30), y.split(30), strict=True):
        moments.add(seen, wanted)
    zeros = torch.zeros(6, 3, dtype=torch.float64)
    fitted = least_squares(moments.covariance(), moments.cross(), zeros, 0.0)
    shift = moments.mean_beside() - moments.mean() @ fitted
    wanted = np.linalg.lstsq(np.c_[x.numpy(), np.ones(200)], y.numpy(), rcond=None)[0]
    assert np.allclose(np.r_[fitted.numpy(), shift.numpy()[None]], wanted, atol=1e-10)


def test_moments_of_many_columns_are_numpys() -> None:
    """More columns than are multiplied at once, and rows in uneven pieces."""
    x = torch.randn(700, 1100, dtype=torch.float64, generator=generator()) + 3
    y = torch.randn(700, 2, dtype=torch.float64, generator=generator(1))
    moments = Moments(1100, beside=2)
    for seen, wanted in zip(x.split(90), y.split(90), strict=True):
        moments.add(seen, wanted)
    everything = np.cov(torch.cat([x, y], 1).numpy().T, bias=True)
    assert np.allclose(moments.covariance(), everything[:1100, :1100], atol=1e-10)
    assert np.allclose(moments.cross(), everything[:1100, 1100:], atol=1e-10)
    assert np.allclose(moments.mean(), x.numpy().mean(0), atol=1e-12)


def test_a_strong_ridge_stays_at_the_prior() -> None:
    x = torch.randn(50, 4, dtype=torch.float64, generator=generator())
    covariance, prior = torch.cov(x.T), torch.randn(4, 2, dtype=torch.float64, generator=generator(3))
    cross = covariance @ torch.ones(4, 2, dtype=torch.float64)
    assert torch.allclose(least_squares(covariance, cross, prior, 1e9), prior, atol=1e-6)
    free = least_squares(covariance, cross, prior, 0.0)
    assert torch.allclose(free, torch.ones(4, 2, dtype=torch.float64), atol=1e-8)


def test_mixing_is_numpys_regression() -> None:
    x = torch.randn(300, 5, dtype=torch.float64, generator=generator()) @ torch.randn(
        5, 5, dtype=torch.float64, generator=generator(1)
    )
    kept, removed = torch.tensor([0, 2, 3]), torch.tensor([1, 4])
    matrix = mixing(torch.cov(x.T), kept, removed, strength=0.0)
    centred = (x - x.mean(0)).numpy()
    wanted = np.linalg.lstsq(centred[:, kept], centred[:, removed], rcond=None)[0].T
    assert np.allclose(matrix.numpy(), wanted, atol=1e-10)


def test_backward_elimination_adds_up_the_error_of_regression() -> None:
    """After each step, the summed error is that of regressing all removed channels on those left."""
    x = torch.randn(400, 6, dtype=torch.float64, generator=generator()) @ torch.randn(
        6, 6, dtype=torch.float64, generator=generator(1)
    )
    weight = torch.randn(6, 7, dtype=torch.float64, generator=generator(2))
    covariance = ridge(torch.cov(x.T, correction=0), 1e-4)
    found = backward_elimination([covariance], [weight @ weight.T], [np.arange(6)], 6, np.arange(6))
    assert sorted(found.removed.tolist()) == list(range(6))
    twice = ridge(covariance)  # what the elimination works with
    for k in range(1, 5):
        gone = torch.from_numpy(found.removed[:k])
        left = torch.from_numpy(found.removed[k:].copy())
        m = mixing(twice, left, gone, 0.0)
        residual = twice[gone][:, gone] - m @ twice[left][:, gone]
        assert found.error[k - 1] == pytest.approx(
            float(torch.trace(weight[gone].T @ residual @ weight[gone])), rel=1e-6
        )


def test_first_to_leave_is_the_one_that_costs_least_by_brute_force() -> None:
    x = torch.randn(400, 5, dtype=torch.float64, generator=generator()) @ torch.randn(
        5, 5, dtype=torch.float64, generator=generator(4)
    )
    weight = torch.randn(5, 3, dtype=torch.float64, generator=generator(2))
    covariance = ridge(torch.cov(x.T, correction=0), 1e-4)
    found = backward_elimination([covariance], [weight @ weight.T], [np.arange(5)], 5, np.arange(5))
    costs = []
    for i in range(5):
        others = torch.tensor([j for j in range(5) if j != i])
        m = mixing(covariance, others, torch.tensor([i]), 1e-4)
        costs.append(float((covariance[i, i] - m[0] @ covariance[others, i]) * weight[i].square().sum()))
    assert int(found.removed[0]) == int(np.argmin(costs))


# --- the tape -----------------------------------------------------------------------------------------------------


def test_block_elimination_is_least_squares_without_the_block() -> None:
    """After each step the kernel is the fit on what is left, and the cost is what the residual has grown by."""
    x = torch.randn(300, 8, dtype=torch.float64, generator=generator()) @ torch.randn(
        8, 8, dtype=torch.float64, generator=generator(1)
    )
    y = torch.randn(300, 3, dtype=torch.float64, generator=generator(2)) + x[:, :3]
    heard = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def residual(left: Tensor) -> tuple[Tensor, float]:
        inputs = x[:, (left[:, None] * 2 + torch.arange(2)).flatten()]
        kernel = torch.linalg.lstsq(inputs, y).solution
        return kernel, float(((y - inputs @ kernel).square() * heard).sum())

    found = block_elimination(x.T @ x, x.T @ y, 2, heard, 1, torch.zeros(4, dtype=torch.bool), (4, 3, 2, 1))
    costs, before = [], residual(torch.arange(4))[1]
    for count in (3, 2, 1):
        left, kernel = found.fits[count]
        wanted, error = residual(left)
        assert torch.allclose(kernel.double(), wanted, atol=1e-5)
        costs.append(error - before)
        before = error
    assert np.allclose(found.cost, costs, rtol=1e-8)
    others = [residual(torch.tensor([j for j in range(4) if j != i]))[1] for i in range(4)]
    assert int(found.removed[0]) == int(np.argmin(others))
    kept = block_elimination(x.T @ x, x.T @ y, 2, heard, 1, torch.tensor([False, True, False, False]))
    assert kept.left.tolist() == [1]


def test_behind_a_relu_the_fit_follows_what_passes_it() -> None:
    """Against minimising the same convex loss by a general optimiser; and after the ReLU it beats least squares."""
    x = torch.randn(2000, 4, generator=generator())
    y = (
        x @ torch.randn(4, 2, generator=generator(1))
        + torch.randn(2000, 2, generator=generator(2)).abs() * 3
        - 3
    )
    level, sign = torch.full_like(y, 0.3), torch.tensor([1.0, -1.0])

    def samples() -> Samples:
        found = Samples(3000)
        found.add(x[:500], y[:500], level[:500])
        found.add(x[500:], y[500:], level[500:])
        return found

    prior, none = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.bool)
    plain, gated = (
        fit(samples(), prior, 1, 1e-9, torch.ones(2), sign, None, none, steps) for steps in (0, 200)
    )

    def loss(kernel: Tensor, constant: Tensor) -> Tensor:
        given, at = x.double() @ kernel + constant, level.double()
        open_ = (y - level) * sign > 0
        rest = torch.where((given - at) * sign > 0, given - at, 0.0)
        return torch.where(open_, y.double() - given, rest).square().mean()

    kernel, constant = prior.clone().requires_grad_(), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([kernel, constant], max_iter=200, tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(kernel, constant)
        value.backward()
        return value

    optimizer.step(closure)
    best = float(loss(kernel, constant).detach())
    assert float(loss(gated.kernel, gated.constant)) == pytest.approx(best, rel=1e-4)
    assert float(loss(plain.kernel, plain.constant)) > 1.2 * best


def test_answers_are_softened_until_a_fair_share_of_the_pictures_has_a_say() -> None:
    doubted = 3 * torch.randn(200, 10, generator=generator())
    assert temperature(doubted) == 1
    by_heart = 2 * torch.randn(200, 10, generator=generator())
    by_heart[:, 0] += 15.0
    assert temperature(by_heart) == 4
    assert temperature(100 * by_heart) == 8


def test_hearing_is_the_squared_gradient_of_a_drawn_label() -> None:
    net, x = small_net(), pictures(16)
    tape = replay.record(net, x)
    ops = [k for k, play in enumerate(tape.plays) if "convolution" in play.func.name()]
    heard = hearing(tape, ops, named_tensors(net), x, seed=3)
    seen: list[Tensor] = []
    convs = [m for m in net if isinstance(m, nn.Conv2d)]
    hooks = [c.register_forward_hook(lambda _, __, out: seen.append(out.requires_grad_())) for c in convs]
    scores = net(x)
    scores = scores / temperature(scores.detach())
    label = torch.multinomial(scores.detach().softmax(1), 1, generator=generator(3))
    wanted = torch.autograd.grad(scores.log_softmax(1).gather(1, label).sum(), seen)
    for hook in hooks:
        hook.remove()
    for op, gradient in zip(ops, wanted, strict=True):
        assert torch.allclose(heard[op], gradient.square().sum((0, 2, 3)).double(), rtol=1e-3)


def test_readers_choose_again_as_many_channels() -> None:
    net, x = small_net(), pictures(128)
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x)
    cut = plan.at(flops=0.5)
    made = substituted(net, x[:1], plan, cut, "linear", x, 0, None, Settings(choose="all"))
    assert made.cut.widths == cut.widths
    assert {n: len(k) for n, k in made.cut.kept.items()} == dict(cut.widths)
    assert made.model.get_parameter("0.weight").shape[0] == cut.widths["0"]
    assert made.surgery.indices["0.weight", 0].tolist() == list(made.cut.kept["0"])
    assert all(c.representative in made.cut.kept[n] for n, cs in made.cut.clusters.items() for c in cs)
    with torch.no_grad():
        scores, wanted = made.model(x), net(x)
    assert float((scores - wanted).square().mean()) < 0.5 * float(wanted.var())
    plain = substituted(net, x[:1], plan, cut, "linear", x, 0, None)
    assert plain.cut is cut


def test_residual_branches_choose_again_among_what_span_removed_and_nobody_elses() -> None:
    torch.manual_seed(0)
    net = models.build("resnet20", width=0.5).train()
    x = torch.randn(48, 3, 16, 16, generator=generator())
    for _ in range(3):  # batch norms that know the pictures
        net(x)
    net.eval()
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x)
    cut = plan.at(flops=0.5)
    errors = {}
    for choose in ("none", "sums"):
        made = substituted(net, x[:1], plan, cut, "linear", x, 0, None, Settings(choose=choose))
        assert (made.cut.kept == cut.kept) == (choose == "none")
        assert dict(made.cut.widths) == dict(cut.widths)
        with torch.no_grad():
            errors[choose] = float((made.model(x) - net(x)).square().mean())
    assert errors["sums"] < 1.2 * errors["none"]
    other = slimilar.analyze(net, x[:1], criterion="magnitude-l1")
    cut = other.at(flops=0.5)
    assert substituted(net, x[:1], other, cut, "linear", x, 0, None, Settings(choose="all")).cut is cut


@pytest.mark.parametrize("name", ["vgg16", "resnet20", "preresnet"])
def test_playing_the_tape_is_running_the_model(name: str) -> None:
    net = (models.PreResNet(11) if name == "preresnet" else models.build(name, width=0.25)).eval()
    x = torch.randn(4, 3, 32, 32, generator=generator())
    tape = replay.record(net, x)
    values = replay.start(tape, [x])
    with torch.no_grad():
        replay.run(tape, values, named_tensors(net))
        torch.testing.assert_close(values[tape.outputs[0]], net(x), rtol=1e-4, atol=1e-5)


def test_mirror_images_go_in_where_a_network_takes_them_for_the_same() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    sided = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    with torch.no_grad():
        sided[1].weight.zero_()
        sided[1].weight.view(3, 3, 8, 8)[[0, 1], 0, :, [0, -1]] = 1.0  # which side is brighter
    x = pictures(16)[:, :3, :8, :8]
    blind, seeing = (
        with_mirror_images(list(x.split(8)), replay.record(net, x[:8]), named_tensors(net), 1000)
        for net in (head, sided)
    )
    assert torch.equal(torch.cat(blind), torch.cat([x, x.flip(-1)]))
    assert torch.equal(torch.cat(seeing), x)
    tape, tensors = replay.record(head, x[:8]), named_tensors(head)
    assert len(with_mirror_images(blind, tape, tensors, 1000)) == 4, "not twice"
    assert len(with_mirror_images(list(x.split(8)), tape, tensors, 10**12)) == 2, "not at any cost"


# --- substitutes --------------------------------------------------------------------------------------------------


def test_merging_exact_duplicates_changes_nothing() -> None:
    net = small_net().double()
    with torch.no_grad():
        net[1].weight[2], net[1].bias[2] = (
            0.05,
            1.0,
        )  # Eq. 4 calls near what varies little: these are the nearest
    duplicate(net, 2, [5, 7])
    x = pictures(8).double()
    result = slimilar.prune(net, x[:1], threshold=1e-9, substitute="merge", exclude=["3"])
    assert {c.members for c in result.clusters["0"] if len(c.members) > 1} == {(2, 5, 7)}
    assert (result.model(x) - net(x)).abs().max() < 1e-10
    bare = slimilar.prune(net, x[:1], threshold=1e-9, substitute="none", exclude=["3"])
    assert (bare.model(x) - net(x)).abs().max() > 1e-4


def test_merge_adds_the_kernel_to_the_representatives() -> None:
    net = small_net()
    result = slimilar.prune(net, pictures(1), threshold=0.3, substitute="merge")
    for cluster in result.clusters["0"]:
        wanted = net[3].weight[:, list(cluster.members)].sum(1)
        place = result.kept["0"].index(cluster.representative)
        rows = list(result.kept["3"])
        assert torch.allclose(result.model[3].weight[:, place], wanted[rows], atol=1e-6)


def layer_error(net: nn.Module, small: nn.Module, x: Tensor, kept: tuple[int, ...]) -> float:
    """How far the second convolution, as its batch norm sees it, is from the original's."""
    with torch.no_grad():
        wanted = net[:5](x)[:, list(kept)]
        return float((small[:5](x) - wanted).square().mean())


def test_linear_is_never_worse_than_mean_or_merge_on_the_calibration_pictures() -> None:
    net, x = small_net(), pictures(64)
    exclude = ["3"]  # one layer loses channels, so that errors are of one reader
    errors = {}
    for how in ("none", "merge", "mean", "linear"):
        result = slimilar.prune(
            net, x[:1], threshold=0.35, substitute=how, calibration=x, exclude=exclude, criterion="similarity"
        )
        assert result.substitute == how
        errors[how] = layer_error(net, result.model, x, tuple(range(8)))
    assert errors["linear"] <= min(errors["mean"], errors["merge"], errors["none"])
    assert errors["mean"] < errors["none"]


def test_linear_recovers_what_the_others_span() -> None:
    """A channel that is a positive multiple of another is spanned: nothing is lost."""
    net = small_net()
    with torch.no_grad():
        net[0].weight[4] = net[0].weight[1]
        net[1].running_mean[4], net[1].running_var[4] = net[1].running_mean[1], net[1].running_var[1]
        net[1].weight[4], net[1].bias[4] = 3 * net[1].weight[1], 3 * net[1].bias[1]
    x = pictures(64)
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x, exclude=["3", "7"])
    assert plan.orders[0].removed[0] in (1, 4)
    result = slimilar.prune(net, x[:1], flops=0.97, calibration=x, exclude=["3", "7"])
    assert (result.model(x) - net(x)).abs().max() < 1e-2 * net(x).abs().max()


def test_a_fit_holds_no_more_numbers_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every reader, samples and what it should write together; but one place of each picture at least."""
    held, x = [], pictures(64)

    def counting(samples: Samples, *others: Any) -> Any:
        held.append(sum(t.numel() for t in samples.all() if t is not None))
        return fit(samples, *others)

    monkeypatch.setattr(linear, "fit", counting)
    slimilar.prune(small_net(), x[:1], flops=0.6, calibration=x)
    free = max(held)
    held.clear()
    monkeypatch.setattr(linear, "PAIRED", free // 4)
    slimilar.prune(small_net(), x[:1], flops=0.6, calibration=x)
    assert held
    assert max(held) <= 1.2 * free // 4


def test_mean_puts_the_expected_value_into_the_next_batch_norm_or_bias() -> None:
    for bias in (False, True):
        net = small_net(bias)
        result = slimilar.prune(net, pictures(1), threshold=0.3, substitute="mean", exclude=["3"])
        gone = [i for i in range(10) if i not in result.kept["0"]]
        beta, gamma = net[1].bias[gone].double(), net[1].weight[gone].abs().double()
        z = beta / gamma
        normal = torch.distributions.Normal(0.0, 1.0)
        expected = beta * normal.cdf(z) + gamma * normal.log_prob(z).exp()  # E[relu(x)]
        shift = (net[3].weight[:, gone].sum((2, 3)).double() @ expected).float()
        if bias:
            assert torch.allclose(result.model[3].bias, net[3].bias + shift, atol=1e-5)
        else:
            assert torch.allclose(result.model[4].running_mean, net[4].running_mean - shift, atol=1e-5)


def test_expectations_pass_pooling_and_meet_sampling() -> None:
    net = small_net()
    found = expect(trace(net, pictures(1)), named_tensors(net))
    pooled = [c for c in found.values() if c.places == 4]
    assert pooled
    channels = pooled[0]
    draws = channels.mean + channels.std * torch.randn(
        200_000, 4, 8, dtype=torch.float64, generator=generator()
    )
    assert torch.allclose(draws.relu().amax(1).mean(0), channels.expectation(), atol=2e-2)


def test_every_reader_of_a_stream_is_served_and_budgets_hold_with_new_biases() -> None:
    torch.manual_seed(0)
    net = models.PreResNet(20)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.uniform_(0.2, 1.5, generator=generator(1))
                m.bias.normal_(0, 0.5, generator=generator(2))
    net.eval()
    x = torch.randn(48, 3, 32, 32, generator=generator(3))
    for residual in ("inner", "select", "joint"):
        result = slimilar.prune(
            net, x[:1], flops=0.6, calibration=x, residual=residual, criterion="similarity"
        )
        assert result.cut.flops == slimilar.count(result.model, x[:1]).flops
        assert result.cut.flops <= 0.6 * result.cut.before.flops
        bare = slimilar.prune(net, x[:1], flops=0.6, substitute="none", residual=residual)
        with torch.no_grad():
            wanted = net(x)
            mended, plain = ((m(x) - wanted).square().mean() for m in (result.model, bare.model))
        assert mended < plain


def test_grouped_and_depthwise_readers_are_served() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.SiLU(),
        nn.Conv2d(12, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, 5),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for i in (1, 4):
            net[i].weight.uniform_(0.3, 1.5, generator=generator(i))
            net[i].bias.normal_(0, 0.5, generator=generator(i + 1))
    x = pictures(64)
    for options in ({"calibration": x}, {}):
        result = slimilar.prune(net, x[:1], flops=0.7, criterion="similarity", **options)
        bare = slimilar.prune(net, x[:1], flops=0.7, substitute="none")
        with torch.no_grad():
            assert (result.model(x) - net(x)).square().mean() < (bare.model(x) - net(x)).square().mean()


# --- span ---------------------------------------------------------------------------------------------------------


def test_span_beats_similarity_at_equal_cost_and_is_repeatable() -> None:
    net, x = small_net(), pictures(128)
    a = slimilar.prune(net, x[:1], flops=0.5, calibration=x)
    b = slimilar.prune(net, x[:1], flops=0.5, calibration=x)
    other = slimilar.prune(net, x[:1], flops=0.5, calibration=x, criterion="similarity")
    assert a.plan.criterion == "span"
    assert a.kept == b.kept
    assert all(torch.equal(v, b.model.state_dict()[k]) for k, v in a.model.state_dict().items())
    with torch.no_grad():
        assert (a.model(x) - net(x)).square().mean() < (other.model(x) - net(x)).square().mean()


def test_span_needs_pictures() -> None:
    with pytest.raises(InvalidInput, match="calibration"):
        slimilar.analyze(small_net(), pictures(1), criterion="span")


@pytest.mark.parametrize("name", [n for n in available() if facts(n).needs in ("nothing", "pictures")])
def test_every_criterion_reaches_a_budget(name: str) -> None:
    net, x = small_net(), pictures(64)
    result = slimilar.prune(net, x[:1], flops=0.6, criterion=name, calibration=x, substitute="none")
    assert 0.5 < result.cut.flops / result.cut.before.flops <= 0.6


def test_span_is_an_ordinary_criterion_object() -> None:
    net, x = small_net(), pictures(64)
    assert slimilar.prune(net, x[:1], flops=0.6, criterion=Span(), calibration=x).plan.criterion == "span"


# --- calibration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("once", [True, False])
def test_calibration_is_gone_through_once(once: bool) -> None:
    """A generator has no second pass, and a loader that shuffles would show choice and fit different pictures."""
    net, x = small_net(), pictures(12)
    passes: list[int] = []

    class Shuffling:
        def __iter__(self):
            passes.append(len(passes))
            yield from x.roll(len(passes) - 1, 0).split(4)

    given = iter(Shuffling()) if once else Shuffling()
    result = slimilar.prune(net, x[:1], flops=0.6, calibration=given)
    expected = slimilar.prune(net, x[:1], flops=0.6, calibration=x)
    assert passes == [0]
    for a, b in zip(result.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_calibration_takes_tensors_loaders_and_labelled_batches() -> None:
    x = pictures(20)
    wanted = to_batches(x, x[:1], 8)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, torch.zeros(20, dtype=torch.long)), batch_size=5
    )
    assert all(torch.equal(a, b) for a, b in zip(to_batches(loader, x[:1], 8), wanted, strict=True))
    assert len(to_batches(x, x[:1], 8, most=8)) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.zeros(4, 3, 5, 5), "shape of the example"),
        (torch.zeros(4, 3, 12, 12, dtype=torch.uint8), "floating point"),
        (torch.full((4, 3, 12, 12), float("nan")), "finite"),
        ([], "at least one batch"),
        (["a.png"], "tensor, got str"),
        ("synthesise", '"synthesize"'),
        (7, "got int"),
    ],
)
def test_bad_calibration_gets_one_clear_sentence(given: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        slimilar.prune(small_net(), pictures(1), flops=0.8, calibration=given)


def test_synthesised_pictures_match_the_statistics_and_serve() -> None:
    net = small_net()
    before = copy.deepcopy(net.state_dict())
    seen: list[tuple[str, int, int]] = []
    made = synthesize(
        net, pictures(1), count=32, steps=40, batch=16, seed=3, progress=lambda *a: seen.append(a)
    )
    again = synthesize(net, pictures(1), count=32, steps=40, batch=16, seed=3)
    assert torch.equal(made, again)
    assert seen[-1][1:] == (40, 40)  # the other half are mirror images
    assert torch.equal(made[:16].flip(-1), made[16:])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())

    def gap(x: Tensor) -> float:
        with torch.no_grad():
            y = net[0](x)
        scale = net[1].running_var.sqrt()
        return float(((y.mean((0, 2, 3)) - net[1].running_mean) / scale).square().mean())

    assert gap(made) < 0.1 * gap(torch.randn(32, 3, 12, 12, generator=generator(5)) + 0.5)
    with pytest.raises(InvalidInput, match="batch norms"):
        synthesize(nn.Conv2d(3, 4, 1), pictures(1))


class Looks(nn.Module):
    """A network that looks at values, so that its operators cannot be played back without them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (1.0 if float(x.sum()) > -1e9 else 2.0)


def test_models_that_look_at_values_are_pruned_without_substitution() -> None:
    result = slimilar.prune(Looks().eval(), pictures(1), threshold=0.3)
    assert result.substitute == "none"
    with pytest.raises(InvalidInput, match="looks at values"):
        slimilar.prune(Looks().eval(), pictures(1), threshold=0.3, substitute="mean")


def test_modes_of_single_modules_are_kept() -> None:
    net = small_net().train()
    net[1].eval()
    small = slimilar.prune(net, pictures(1), threshold=0.3).model
    assert small.training
    assert not small[1].training
    assert small[4].training


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_pictures_are_synthesised_in_the_models_precision(dtype: torch.dtype) -> None:
    net = small_net().to(dtype)
    made = synthesize(net, pictures(1).to(dtype), count=4, steps=2)
    assert made.dtype == dtype
    assert {t.dtype for t in net.parameters()} == {dtype}
    assert torch.allclose(made.float(), synthesize(net.float(), pictures(1), count=4, steps=2), atol=2e-3)


def test_synthesised_pictures_have_the_colours_of_the_training_data() -> None:
    colours = torch.tensor([0.6, 0.4, 0.2])[:, None, None]
    seen = colours + 0.1 * _natural_noise((64, 3, 16, 16), generator())
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, momentum=None), nn.ReLU(), nn.Conv2d(16, 4, 3)
    ).eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.init.normal_(net[0].weight)
    net[1].train()
    with torch.no_grad():
        net(seen)
    made = synthesize(net.eval(), seen[:1], count=16, steps=5)
    assert torch.allclose(made.mean((0, 2, 3)), colours.flatten(), atol=0.1)
