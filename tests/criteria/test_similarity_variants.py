"""Similarity with other distances, each against sampling or against the activations themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.criteria import Weights
from slimilar.criteria.similarity_variants import SimilarityVariant, _by_norms, _on_images
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.distances import activation_distance
from slimilar.utils.modules import named_tensors


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
    )  # fmt: skip
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    return model.eval()


def images() -> Tensor:
    return torch.randn(64, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def first_group(model: nn.Module) -> ChannelGroup:
    return slimilar.analyze(model, images()[:1]).groups[0]


@pytest.mark.parametrize("correlated", [False, True])
def test_distance_after_the_activation_is_what_sampling_gives(correlated: bool) -> None:
    model = net()
    found = _by_norms(first_group(model), Weights(named_tensors(model)), correlated)
    filters = nn.functional.normalize(model[0].weight.detach().double().flatten(1), dim=1)
    noise = torch.randn(
        200_000, filters.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    sample = noise @ filters.T if correlated else noise[:, :6]
    y = torch.relu(sample * model[1].weight.detach() + model[1].bias.detach())
    assert found is not None
    assert torch.allclose(found, activation_distance(y), atol=0.03, rtol=0.03)


def test_distance_on_pictures_is_eq_1_where_channels_are_read() -> None:
    model, x = net(), images()
    plan = slimilar.analyze(model, x[:1], criterion=SimilarityVariant("similarity-images"), calibration=x)
    assert {g.name for g in plan.groups} <= {"0", "3"}
    seen: list[Tensor] = []
    with torch.no_grad():
        seen.append(model[:3](x))
    captured: list[list[Tensor | None]] = []

    class Spy(SimilarityVariant):
        def orders(self, groups, weights):  # type: ignore[no-untyped-def]
            captured.append(_on_images(groups, weights, weights.calibration, weighted=False))
            captured.append(_on_images(groups, weights, weights.calibration, weighted=True))
            return super().orders(groups, weights)

    slimilar.analyze(model, x[:1], criterion=Spy("similarity-consumers"), calibration=x)
    plain, weighted = captured[0][0], captured[1][0]
    assert plain is not None
    assert weighted is not None
    wanted = activation_distance(seen[0]).double()
    assert torch.allclose(plain, wanted, atol=1e-4)
    size = model[3].weight.detach().double().square().sum((0, 2, 3))
    assert torch.allclose(weighted, wanted * torch.minimum(size[:, None], size), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["similarity-active", "similarity-filters", "similarity-images", "similarity-consumers"]
)
def test_each_meets_a_budget_and_says_who_stands_in(name: str) -> None:
    model, x = net(), images()
    result = slimilar.prune(
        model, x[:1], flops=0.7, criterion=SimilarityVariant(name), calibration=x, substitute="merge"
    )  # type: ignore[arg-type]
    assert result.cut.flops <= 0.7 * result.cut.before.flops
    assert any(len(c.members) > 1 for c in result.clusters["0"])


def test_looking_needs_images() -> None:
    with pytest.raises(InvalidInput, match="pass calibration="):
        slimilar.analyze(net(), images()[:1], criterion=SimilarityVariant("similarity-images"))
