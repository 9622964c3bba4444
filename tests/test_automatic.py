"""What "auto" decides, it decides on images that nothing was fitted to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.calibration.batches import to_batches
from slimilar.calibration.calibration_set import CalibrationSet, calibration_set
from slimilar.calibration.program import program_of
from slimilar.criteria.base import CalibrationView
from slimilar.criteria.scan_images import ScanImages
from slimilar.pipeline import automatic, candidates
from slimilar.planning.cost import cost_model
from slimilar.surgery.probe import find_structure


def images(count: int, seed: int = 0) -> Tensor:
    noise = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * 2


def settled(net: nn.Module) -> nn.Module:
    """Return a network whose batch norms know what they get."""
    net.train()
    for seed in range(10):
        net(images(64, 100 + seed))
    generator = torch.Generator().manual_seed(1)
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.3, 1.5, generator=generator)
            nn.init.normal_(norm.bias, 0, 0.5, generator=generator)
    return net.eval()


def headed() -> nn.Module:
    """A network whose last convolution is wide and read behind global pooling."""
    torch.manual_seed(0)
    return settled(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 96, 1, bias=False), nn.BatchNorm2d(96), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
        )
    )  # fmt: skip


class Residual(nn.Module):
    """A stream that two branches add to; class scores and a dense map as outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(12, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
                nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
                nn.Conv2d(16, 12, 1, bias=False), nn.BatchNorm2d(12),
            )
            for _ in range(2)
        )  # fmt: skip
        self.scores, self.map = nn.Linear(12, 5), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.scores(x.mean((2, 3))), self.map(x)


@pytest.mark.parametrize("count", [16, 24, 48])
def test_a_head_behind_global_pooling_keeps_its_width_with_few_images(count: int) -> None:
    """One row an image: a handful of channels reproduces them all, and cutting the head must not look free."""
    net = headed()
    plan = slimilar.analyze(net, images(1), criterion="span", calibration=images(count))
    head = next(g for g in plan.groups if g.width == 96)
    assert plan.at(flops=0.8, round_to=1).widths[head.name] >= 48


def test_fitted_and_measured_images_never_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    net, given = headed(), images(40)
    structure = find_structure(net, given[:1], "inner")
    costs = cost_model(structure.trace, structure.grouping)
    batches = to_batches(given, given[:1], 8)
    program = program_of(net, given[:1], structure, 8)
    calibration = CalibrationView(structure.trace, structure.grouping, costs, program, batches)
    parts = ScanImages.of(calibration, len(structure.grouping.groups), effort=1e9)
    for fitted in torch.cat(list(parts.fit)):
        for part in (parts.check, parts.measure):
            assert not (torch.cat(list(part)) == fitted).flatten(1).all(1).any()

    seen: list[Tensor] = []
    reconstructed_model, outputs = candidates.reconstructed_model, candidates._outputs

    def fit(*args: object) -> object:
        data = args[5]
        assert isinstance(data, CalibrationSet)
        assert data.images is not None
        seen.append(data.images)
        return reconstructed_model(*args)  # type: ignore[arg-type]

    def measure(model: nn.Module, example: Tensor, batch: Tensor) -> list[Tensor]:
        for images in seen:
            for image in images:
                assert not (batch == image).flatten(1).all(1).any()
        return outputs(model, example, batch)

    monkeypatch.setattr(candidates, "reconstructed_model", fit)
    monkeypatch.setattr(candidates, "_outputs", measure)
    plan = slimilar.analyze(net, given[:1], criterion="magnitude-l2")
    found = calibration_set(given, None, given[:1])
    plain = candidates.Candidate("plain", plan, plan.at(flops=0.7))
    candidates.compare(net, given[:1], [plain], found)
    assert seen


@pytest.mark.parametrize("winner", ["span", "magnitude-l2", "similarity", "similarity, data-free"])
def test_auto_takes_the_candidate_that_does_best(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def scored(
        model: object, example: object, found: list[candidates.Candidate], *_: object
    ) -> candidates.PlanComparison:
        names.extend(c.name for c in found)
        return candidates.PlanComparison(winner, {c.name: 0.1 if c.name == winner else 1.0 for c in found})

    monkeypatch.setattr(automatic, "compare", scored)
    result = slimilar.prune(headed(), images(1), flops=0.7, calibration=images(32), verify=False)
    assert names == ["span", "magnitude-l2", "similarity", "similarity, data-free"]
    assert result.plan.criterion == winner.removesuffix(", data-free")
    assert result.scores[winner] == 0.1
    assert winner in result.summary()


def test_candidates_far_behind_get_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[int, str]] = []
    told = {32: {"a": 0.1, "b": 0.19, "c": 0.21, "d": 0.9}, 200: {"a": 0.3, "b": 0.28}}

    def gaps(self: candidates.HeldOutImages, candidate: candidates.Candidate, quick: bool) -> Tensor:
        looks.append((self.count, candidate.name))
        noise = torch.tensor([1, -1, 1, -1]) * (-1 if candidate.name == "b" else 1)
        return told[self.count][candidate.name] + (0.08 if self.count == 32 else 0.01) * noise

    monkeypatch.setattr(candidates.HeldOutImages, "gaps", gaps)
    net, given = headed(), images(1)
    plan = slimilar.analyze(net, given, criterion="magnitude-l2")
    four = [candidates.Candidate(name, plan, plan.at(flops=0.7)) for name in "abcd"]
    many = calibration_set(images(2).repeat(100, 1, 1, 1), None, given)
    found = candidates.compare(net, given, four, many)
    assert looks == [(32, name) for name in "abcd"] + [(200, name) for name in "ab"]
    assert found.chosen == "b"  # "c" had 0.21, but on other images than "b"
    assert found.scores == pytest.approx({"a": 0.3, "b": 0.28, "c": 0.3, "d": 0.9})


def test_where_quick_fits_lose_nearly_everything_real_ones_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[tuple[int, str, bool]] = []
    quick = {"span": 1.35, "similarity": 1.34, "similarity, data-free": 1.3}
    real = {"span": 0.3, "similarity": 0.5, "similarity, data-free": 0.6}

    def gaps(self: candidates.HeldOutImages, candidate: candidates.Candidate, quickly: bool) -> Tensor:
        looks.append((self.count, candidate.name, quickly))
        return (quick if quickly else real)[candidate.name] + torch.tensor([0.1, -0.1, 0.05, -0.05])

    monkeypatch.setattr(candidates.HeldOutImages, "gaps", gaps)
    net, given = headed(), images(1)
    plan = slimilar.analyze(net, given, criterion="magnitude-l2")
    three = [
        candidates.Candidate(name, plan, plan.at(flops=0.7), fitted="data-free" not in name) for name in quick
    ]
    many = calibration_set(images(2).repeat(100, 1, 1, 1), None, given)

    def chosen() -> str:
        looks.clear()
        return candidates.compare(net, given, three, many).chosen

    assert chosen() == "span"
    looked = [(32, True), (200, True), (200, False)]
    assert looks == [(count, name, quickly) for count, quickly in looked for name in quick]
    real["similarity, data-free"] = 0.2
    assert chosen() == "similarity, data-free"
    quick |= {"span": 0.3, "similarity": 0.31, "similarity, data-free": 0.32}
    assert chosen() == "span"  # which is near the original: the quick fits decide
    assert all(quickly for _, _, quickly in looks)


def test_an_alternative_that_is_ahead_by_noise_alone_is_not_taken() -> None:
    """One image of eight decides on a network that knows all the others by heart."""
    span, other = torch.zeros(8), torch.zeros(8)
    span[3], other[3] = 0.0072, 0.0008
    assert not candidates._is_behind(span, other)
    assert candidates.first_unbeaten({"span": span, "similarity": other}) == "span"
    assert candidates.first_unbeaten({"span": span + 0.01, "similarity": other}) == "similarity"


def test_candidates_surely_behind_get_no_second_look() -> None:
    """Worse on every image by about the same, or by far less than images differ."""
    generator = torch.Generator().manual_seed(0)
    best = torch.rand(8, generator=generator, dtype=torch.float64) / 2
    noise = torch.randn(8, generator=generator, dtype=torch.float64)
    assert candidates._is_behind(best + 0.1 + 0.03 * noise, best)
    assert not candidates._is_behind(best + 0.1 + 0.3 * noise, best)
    assert not candidates._is_behind(best, best)
    assert not candidates._is_behind(best[:3] + 0.1, best[:3])  # three images tell nothing for sure
    assert not candidates._is_behind(best + 1.1, best + 1)  # and nor does a fit that loses nearly everything


def test_auto_says_so_where_images_are_too_few() -> None:
    net = headed()
    few = slimilar.prune(net, images(1), flops=0.7, calibration=images(8))
    none = slimilar.prune(net, images(1), flops=0.7)
    assert "too few" in few.summary()
    assert few.kept == none.kept
    torch.testing.assert_close(few.model(images(2)), none.model(images(2)))


def test_a_budget_may_take_stream_channels_where_that_costs_less() -> None:
    torch.manual_seed(0)
    net = settled(Residual())
    inner = slimilar.analyze(net, images(1), criterion="span", calibration=images(32))
    both = slimilar.analyze(net, images(1), criterion="span", calibration=images(32), residual="auto")
    assert len(both.groups) > len(inner.groups)
    result = slimilar.prune(net, images(1), flops=0.7, calibration=images(32), residual="auto")
    assert result.cut.flops <= 0.7 * result.cut.before.flops
    assert {"span", "span, inner channels"} <= set(result.scores)
    scores, dense = result.model(images(2))
    assert scores.shape == (2, 5)
    assert dense.shape == (2, 2, 12, 12)


def test_stream_channels_stay_unless_their_removal_is_surely_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that leaves streams whole comes first, so that a draw keeps them."""
    torch.manual_seed(0)
    net = settled(Residual())
    monkeypatch.setattr(candidates.HeldOutImages, "gaps", lambda *_: torch.tensor([0.1, 0.2, 0.3, 0.1]))
    result = slimilar.prune(net, images(1), flops=0.7, calibration=images(32), residual="auto", verify=False)
    inner = slimilar.analyze(net, images(1), criterion="span", calibration=images(32))
    assert next(iter(result.scores)) == automatic.INNER
    assert {g.name for g in result.plan.groups} == {g.name for g in inner.groups}
