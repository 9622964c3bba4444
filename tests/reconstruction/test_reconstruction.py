"""What consumers do about channels that left: exactness where it is promised, and least squares as it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.fitting import duplicate, generator, images, small_net
from slimilar import models
from slimilar.calibration.batches import batch_size
from slimilar.calibration.program import Program
from slimilar.criteria import Span, available, facts
from slimilar.errors import InvalidInput
from slimilar.graph.tracing import trace
from slimilar.reconstruction import least_squares
from slimilar.reconstruction.apply import reconstructed_model
from slimilar.reconstruction.gaussian import expect
from slimilar.reconstruction.least_squares import Network, Settings
from slimilar.reconstruction.patches import Samples, fit
from slimilar.reconstruction.targets import Pair
from slimilar.utils.modules import named_tensors


def test_readers_choose_again_as_many_channels() -> None:
    net, x = small_net(), images(128)
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x)
    cut = plan.at(flops=0.5)
    made = reconstructed_model(net, x[:1], plan, cut, "linear", x, 0, None, Settings(choose="all"))
    assert made.cut.widths == cut.widths
    assert {n: len(k) for n, k in made.cut.kept.items()} == dict(cut.widths)
    assert made.model.get_parameter("0.weight").shape[0] == cut.widths["0"]
    assert made.surgery.indices["0.weight", 0].tolist() == list(made.cut.kept["0"])
    assert all(c.representative in made.cut.kept[n] for n, cs in made.cut.clusters.items() for c in cs)
    with torch.no_grad():
        scores, wanted = made.model(x), net(x)
    assert float((scores - wanted).square().mean()) < 0.5 * float(wanted.var())
    plain = reconstructed_model(net, x[:1], plan, cut, "linear", x, 0, None)
    assert plain.cut is cut


def test_residual_branches_choose_again_among_what_span_removed_and_nobody_elses() -> None:
    torch.manual_seed(0)
    net = models.build("resnet20", width=0.5).train()
    x, unseen = torch.randn(112, 3, 16, 16, generator=generator()).split((48, 64))
    for _ in range(3):  # batch norms that know the images
        net(x)
    net.eval()
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x)
    cut = plan.at(flops=0.5, round_to=1)
    errors = {}
    for choose in ("none", "sums"):
        made = reconstructed_model(net, x[:1], plan, cut, "linear", x, 0, None, Settings(choose=choose))
        assert (made.cut.kept == cut.kept) == (choose == "none")
        assert dict(made.cut.widths) == dict(cut.widths)
        with torch.no_grad():
            errors[choose] = float((made.model(unseen) - net(unseen)).square().mean())
    assert errors["sums"] < 1.1 * errors["none"]  # on images that neither was fitted to
    other = slimilar.analyze(net, x[:1], criterion="magnitude-l1")
    cut = other.at(flops=0.5)
    assert (
        reconstructed_model(net, x[:1], other, cut, "linear", x, 0, None, Settings(choose="all")).cut is cut
    )


def test_merging_exact_duplicates_changes_nothing() -> None:
    net = small_net().double()
    with torch.no_grad():
        net[1].weight[2], net[1].bias[2] = (
            0.05,
            1.0,
        )  # Eq. 4 calls near what varies little: these are the nearest
    duplicate(net, 2, [5, 7])
    x = images(8).double()
    result = slimilar.prune(net, x[:1], threshold=1e-9, substitute="merge", exclude=["3"])
    assert {c.members for c in result.clusters["0"] if len(c.members) > 1} == {(2, 5, 7)}
    assert (result.model(x) - net(x)).abs().max() < 1e-10
    bare = slimilar.prune(net, x[:1], threshold=1e-9, substitute="none", exclude=["3"])
    assert (bare.model(x) - net(x)).abs().max() > 1e-4


def test_merge_adds_the_kernel_to_the_representatives() -> None:
    net = small_net()
    result = slimilar.prune(net, images(1), threshold=0.3, substitute="merge")
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


def test_linear_is_never_worse_than_mean_or_merge_on_the_calibration_images() -> None:
    net, x = small_net(), images(64)
    exclude = ["3"]  # one layer loses channels, so that errors are of one consumer
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
    x = images(64)
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x, exclude=["3", "7"])
    assert plan.orders[0].removed[0] in (1, 4)
    result = slimilar.prune(net, x[:1], flops=0.97, calibration=x, exclude=["3", "7"])
    assert (result.model(x) - net(x)).abs().max() < 1e-2 * net(x).abs().max()


def test_a_fit_holds_no_more_numbers_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every consumer, samples and what it should write together; but one place of each image at least."""
    held, x = [], images(64)

    def counting(samples: Samples, *others: Any) -> Any:
        held.append(sum(t.numel() for t in samples.all() if t is not None))
        return fit(samples, *others)

    monkeypatch.setattr(least_squares, "fit", counting)
    slimilar.prune(small_net(), x[:1], flops=0.6, calibration=x)
    free = max(held)
    held.clear()
    monkeypatch.setattr(least_squares, "PAIRED", free // 4)
    slimilar.prune(small_net(), x[:1], flops=0.6, calibration=x)
    assert held
    assert max(held) <= 1.2 * free // 4


def test_mean_puts_the_expected_value_into_the_next_batch_norm_or_bias() -> None:
    for bias in (False, True):
        net = small_net(bias)
        result = slimilar.prune(net, images(1), threshold=0.3, substitute="mean", exclude=["3"])
        gone = [i for i in range(10) if i not in result.kept["0"]]
        beta, gamma = net[1].bias[gone].double(), net[1].weight[gone].abs().double()
        z = beta / gamma
        normal = torch.distributions.Normal(0.0, 1.0)
        expected = beta * normal.cdf(z) + gamma * normal.log_prob(z).exp()  # E[relu(x)]
        constant = torch.zeros(1, 10, *images(1).shape[2:])
        constant[0, gone] = expected.float()[:, None, None]
        with torch.no_grad():  # what the convolution itself makes of it, borders included, on average
            given = torch.nn.functional.conv2d(constant, net[3].weight, padding=1)
        shift = given.mean((0, 2, 3))
        if bias:
            assert torch.allclose(result.model[3].bias, net[3].bias + shift, atol=1e-5)
        else:
            assert torch.allclose(result.model[4].running_mean, net[4].running_mean - shift, atol=1e-5)


def test_expectations_pass_pooling_and_meet_sampling() -> None:
    net = small_net()
    found = expect(trace(net, images(1)), named_tensors(net))
    pooled = [c for c in found.values() if c.places == 4]
    assert pooled
    channels = pooled[0]
    draws = channels.mean + channels.std * torch.randn(  # of four neighbours half are as good as alike
        200_000, 2, 8, dtype=torch.float64, generator=generator()
    )
    assert torch.allclose(draws.relu().amax(1).mean(0), channels.expectation(), atol=2e-2)


def test_every_reader_of_a_stream_is_served_and_budgets_hold_with_new_biases() -> None:
    torch.manual_seed(0)
    net = models.PreResNet(20, width=0.5)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.uniform_(0.2, 1.5, generator=generator(1))
                m.bias.normal_(0, 0.5, generator=generator(2))
    net.eval()
    x = torch.randn(32, 3, 16, 16, generator=generator(3))
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
    x = images(64)
    for options in ({"calibration": x}, {}):
        result = slimilar.prune(net, x[:1], flops=0.7, criterion="similarity", **options)
        bare = slimilar.prune(net, x[:1], flops=0.7, substitute="none")
        with torch.no_grad():
            assert (result.model(x) - net(x)).square().mean() < (bare.model(x) - net(x)).square().mean()


def test_span_beats_similarity_at_equal_cost_and_is_repeatable() -> None:
    net, x = small_net(), images(128)
    a = slimilar.prune(net, x[:1], flops=0.5, calibration=x)
    b = slimilar.prune(net, x[:1], flops=0.5, calibration=x)
    other = slimilar.prune(net, x[:1], flops=0.5, calibration=x, criterion="similarity")
    assert a.plan.criterion == "span"
    assert a.kept == b.kept
    assert all(torch.equal(v, b.model.state_dict()[k]) for k, v in a.model.state_dict().items())
    with torch.no_grad():
        assert (a.model(x) - net(x)).square().mean() < (other.model(x) - net(x)).square().mean()


def test_span_needs_images() -> None:
    with pytest.raises(InvalidInput, match="calibration"):
        slimilar.analyze(small_net(), images(1), criterion="span")


@pytest.mark.parametrize("name", [n for n in available() if facts(n).needs in ("nothing", "images")])
def test_every_criterion_reaches_a_budget(name: str) -> None:
    net, x = small_net(), images(64)
    result = slimilar.prune(net, x[:1], flops=0.6, criterion=name, calibration=x, substitute="none")
    assert 0.5 < result.cut.flops / result.cut.before.flops <= 0.6


def test_span_is_an_ordinary_criterion_object() -> None:
    net, x = small_net(), images(64)
    assert slimilar.prune(net, x[:1], flops=0.6, criterion=Span(), calibration=x).plan.criterion == "span"


def test_modes_of_single_modules_are_kept() -> None:
    net = small_net().train()
    net[1].eval()
    small = slimilar.prune(net, images(1), threshold=0.3).model
    assert small.training
    assert not small[1].training
    assert small[4].training


class Gated(nn.Module):
    """A norm over channels, with no weight of its own, scales what the head reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 12, 3), nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(x).relu() * self.a(x).norm(dim=1, keepdim=True))


def test_sums_over_channels_do_not_see_removed_ones_while_fitting() -> None:
    """Without half of the channels the norm is smaller; the head makes up for it, if the fit has seen that."""
    torch.manual_seed(0)
    net, x = Gated().eval(), torch.randn(64, 3, 10, 10, generator=generator())
    errors = []
    for method in ("none", "least-squares"):
        plan = slimilar.analyze(net, x[:1], criterion="magnitude-l2", exclude=["b"])
        cut = plan.at(ratio=0.5)
        assert cut.widths == {"a": 6}
        small = slimilar.apply(net, x[:1], plan, cut, reconstruction=method, calibration=x).model
        with torch.no_grad():
            errors.append(float((small(x) - net(x)).square().mean()))
    assert errors[1] < 0.5 * errors[0]


class Widening(nn.Sequential):
    """Holds eight times as many numbers at its second consumer as at its first."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 64, 1), nn.ReLU(), nn.Conv2d(64, 4, 1)
        )


def test_images_join_only_as_later_layers_have_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, as many joined as the first layer could hold: memory grew with the number of images."""
    together: list[int] = []
    fit = least_squares._fit

    def counting(program: Program, network: Network, pairs: Sequence[Pair], *args: Any) -> None:
        together.append(len(pairs))
        fit(program, network, pairs, *args)

    monkeypatch.setattr(least_squares, "_fit", counting)
    net, x = Widening().eval(), images(256)
    each = (
        2 * 64 * x[0, 0].numel() * batch_size(x[:1])
    )  # numbers of both versions of a batch, at the second consumer
    for most in (2, 3, 1000):
        together.clear()
        monkeypatch.setattr(least_squares, "_GROWN", most * each)
        slimilar.prune(net, x[:1], ratio=0.5, criterion="magnitude-l2", calibration=x)
        assert together == [min(most, 256 // batch_size(x[:1]))] * 2
