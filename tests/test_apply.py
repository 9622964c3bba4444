"""apply(): the one route from a plan to a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.small_networks import VGG, Mobile, images, trained
from slimilar import PruningTarget
from slimilar.errors import InvalidInput, NothingToPrune, VerificationError
from slimilar.planning.plan import Plan


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return trained(VGG(classes=5, width=0.25))


@pytest.fixture(scope="module")
def plan(net: nn.Module) -> Plan:
    return slimilar.analyze(net, images(1))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_prune_is_analyze_and_apply(net, plan):
    target = PruningTarget("flops", 0.5, round_to=2)
    by_hand = slimilar.apply(net, images(1), plan, target)
    at_once = slimilar.prune(net, images(1), flops=0.5, round_to=2)
    assert by_hand.kept == at_once.kept
    assert by_hand.reconstruction == at_once.reconstruction != "none"
    for name, tensor in state(at_once.model).items():
        assert torch.equal(tensor, by_hand.model.state_dict()[name])


def test_one_plan_serves_many_cuts_and_nothing_is_changed(net, plan):
    before = state(net)
    models = [slimilar.apply(net, images(1), plan, PruningTarget("ratio", r)).model for r in (0.2, 0.4, 0.6)]
    sizes = [sum(p.numel() for p in m.parameters()) for m in models]
    assert sizes == sorted(sizes, reverse=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


class Bare(nn.Module):
    """A network whose consumers have neither a bias nor a batch norm: reconstruction gives them biases."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 12, 3, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("kind", ["flops", "params"])
def test_a_target_holds_for_the_returned_model_with_its_added_biases(kind):
    torch.manual_seed(0)
    net = Bare().eval()
    nn.init.normal_(net.layers[1].weight, 1, 0.3)
    nn.init.normal_(net.layers[1].bias)
    plan = slimilar.analyze(net, images(1))
    for share in (0.9, 0.7, 0.5):
        target = PruningTarget(kind, share)
        result = slimilar.apply(net, images(1), plan, target)
        assert result.model.layers[3].bias is not None
        cost = slimilar.count(result.model, images(1))
        assert cost == result.cut.cost
        assert getattr(cost, kind) <= share * getattr(plan.before, kind)
        plain = slimilar.apply(net, images(1), plan, target, reconstruction="none")
        assert plain.model.layers[3].bias is None


def test_a_cut_is_carried_out_as_it_is(net, plan):
    cut = plan.at(0.3)
    assert slimilar.apply(net, images(1), plan, cut, reconstruction="none").kept == cut.kept


def test_the_earlier_name_of_reconstruction_works(net, plan):
    result = slimilar.apply(net, images(1), plan, plan.at(0.3), substitute="merge")
    assert (result.reconstruction, result.substitute) == ("merge", "merge")
    assert slimilar.prune(net, images(1), threshold=0.3, substitute="none").reconstruction == "none"
    with pytest.raises(InvalidInput, match="reconstruction must be one of"):
        slimilar.apply(net, images(1), plan, plan.at(0.3), reconstruction="best")


def test_the_rewrite_is_verified(net, plan, monkeypatch):
    def wrong(*_: object) -> float:
        raise VerificationError("the answers differ")

    monkeypatch.setattr("slimilar.surgery.fault.verify", wrong)
    with pytest.raises(VerificationError, match="the answers differ; at fault: group"):
        slimilar.apply(net, images(1), plan, plan.at(0.3), reconstruction="none")
    assert (
        slimilar.apply(net, images(1), plan, plan.at(0.3), reconstruction="none", verify=False).error is None
    )


def test_images_synthesised_for_reconstruction_are_returned(net, plan, monkeypatch):
    made = images(40)
    monkeypatch.setattr("slimilar.calibration.calibration_set.synthesize", lambda *_, **__: made)
    result = slimilar.apply(net, images(1), plan, PruningTarget("flops", 0.7), calibration="synthesize")
    assert result.images is not None
    assert torch.equal(result.images, made)
    assert slimilar.apply(net, images(1), plan, PruningTarget("flops", 0.7), calibration=made).images is None


def test_a_plan_without_groups_has_nothing_to_prune():
    net = trained(Mobile())
    plan = slimilar.analyze(net, images(1), exclude=[""])
    with pytest.raises(NothingToPrune, match="excluded"):
        slimilar.apply(net, images(1), plan, PruningTarget("ratio", 0.5))
