"""Steps of all layers together, after least squares: closer to the original on images that nothing was fitted to."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.digits import digits
from helpers.fitting import images, small_net
from helpers.networks import randomise
from slimilar.calibration.holdout import hold_out
from slimilar.calibration.program import record
from slimilar.data import demo_images
from slimilar.models.preresnet import PreResNet
from slimilar.models.resnet import ResNet
from slimilar.reconstruction import joint_refinement
from slimilar.reconstruction.apply import ReconstructedModel, reconstructed_model, settings_for
from slimilar.reconstruction.joint_refinement import image_visits
from slimilar.utils.modules import named_tensors

EXAMPLE = torch.zeros(1, 3, 32, 32)


def photos(count: int, start: int = 0) -> Tensor:
    return demo_images("train").tensor()[start : start + count]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return randomise(ResNet(depth=8, width=0.5)).float()


def reader_of_digits() -> tuple[nn.Module, Tensor]:
    """Return a residual network that was trained for a moment, and digits."""
    torch.manual_seed(0)
    found = digits()
    x, y = found.tensor().expand(-1, 3, -1, -1), found.labels
    net = ResNet(depth=8)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for part in torch.arange(1000).repeat(4).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        optimiser.step()
    return net.eval(), x.contiguous()


def accept_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each look at the held-out images find the model closer than the one before."""
    looks = count(1)
    monkeypatch.setattr(joint_refinement, "divergence_by_image", lambda a, b: torch.tensor([1 / next(looks)]))


@torch.no_grad()
def read(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return what every convolution and linear layer reads."""
    found: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_pre_hook(lambda _, args, name=name: found.__setitem__(name, args[0]))
    model(x)
    return found


def misread(made: ReconstructedModel, original: nn.Module, x: Tensor) -> float:
    """Return how far what layers read is from what they read in the original, relative to its variance."""
    total = 0.0
    wanted, given = read(deepcopy(original), x), read(deepcopy(made.model), x)
    for name, y in wanted.items():
        kept = made.surgery.indices.get((f"{name}.weight", 1))
        y = y if kept is None else y[:, kept]
        total += float((given[name] - y).square().mean() / y.var())
    return total


def test_layers_read_what_they_read_before_on_images_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_always(monkeypatch)
    net, all_digits = reader_of_digits()
    x, unseen = all_digits[:400], all_digits[1000:]
    plan = slimilar.analyze(net, x[:1], criterion="span", calibration=x)
    cut = plan.at(flops=0.5, round_to=1)
    alone, together = (
        reconstructed_model(net, x[:1], plan, cut, how, x, 0, None) for how in ("least-squares", "linear")
    )
    assert alone.notes == ()
    assert together.notes[0].startswith("all layers were refined together: divergence on held-out images")
    assert misread(together, net, unseen) < 0.97 * misread(alone, net, unseen)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (network, {}),
        (network, {"residual": "joint"}),
        (lambda: randomise(PreResNet(depth=11, width=0.5)).float(), {"residual": "select"}),
        (lambda: network().double(), {}),
    ],
)
def test_the_refined_model_is_verified(
    make: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_always(monkeypatch)
    torch.manual_seed(0)
    net = make()
    x = photos(160).to(next(net.parameters()).dtype)
    result = slimilar.prune(net, x[:1], flops=0.6, round_to=1, calibration=x, **options)
    assert any(note.startswith("all layers were refined together") for note in result.notes)
    assert result.error is not None
    assert result.error < 1e-4


def test_images_to_measure_on_are_never_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(), photos(160).clone()
    x[:, 0] = torch.arange(160.0)[:, None, None] / 160  # no flip and no shift changes the number of an image
    learnt: list[Tensor] = []
    loss, fisher = joint_refinement._Loss.of, joint_refinement.fisher_of_values

    def noted(self: Any, tensors: Any, batch: Tensor) -> Tensor:
        learnt.append(batch)
        return loss(self, tensors, batch)

    def informed(program: Any, axes: Any, original: Any, batches: Any, seed: int) -> Any:
        learnt.extend(batches)
        return fisher(program, axes, original, batches, seed)

    monkeypatch.setattr(joint_refinement._Loss, "of", noted)
    monkeypatch.setattr(joint_refinement, "fisher_of_values", informed)
    plan = slimilar.analyze(net, EXAMPLE)
    slimilar.apply(net, EXAMPLE, plan, plan.at(flops=0.6), calibration=x)
    held_out = torch.cat(hold_out(list(x.split(80))).measure)
    seen = {round(160 * float(image[0, 0, 0])) for batch in learnt for image in batch}
    measured = {round(160 * float(image[0, 0, 0])) for image in held_out}
    assert len(measured) == 40
    assert len(seen) > 80
    assert seen.isdisjoint(measured)


def test_an_image_is_shifted_with_reflected_borders() -> None:
    x = torch.arange(32.0).expand(64, 1, 16, 32).contiguous()
    moved = joint_refinement._shifted(x, torch.Generator().manual_seed(0))
    by = {int(image[0, 0, 8]) - 8 for image in moved}
    assert min(by) == -4
    assert max(by) == 4
    for image in moved:
        step = int(image[0, 0, 8]) - 8
        places = torch.arange(32) + step
        assert torch.equal(image[0, 3], 31.0 - (31 - places.abs()).abs())
    assert joint_refinement._shifted(torch.ones(3, 5), torch.Generator()).shape == (3, 5)


def test_channels_count_by_their_fisher_information() -> None:
    """A channel that nothing hears may compute anything; one that is heard alone stands for its layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 3))
    with torch.no_grad():
        net[2].weight[:, 1:] = 0
    x = torch.randn(32, 3, 8, 8)
    program = record(net, x)
    layer = next(k for k, op in enumerate(program.trace.ops) if op.module == "2")
    value = program.instructions[layer].inputs[0]
    read = joint_refinement.ReadByBoth((layer, value), (layer, value), 1, torch.arange(4))
    weights = joint_refinement._channel_weights(program, named_tensors(net), [read], [x], 0)[0]
    activation = net[:2](x).detach()
    assert torch.allclose(weights * activation.var((0, 2, 3)), torch.tensor([1.0, 0, 0, 0]), atol=1e-4)


def test_what_does_harm_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(), photos(160)
    plan = slimilar.analyze(net, EXAMPLE)
    cut, settings = plan.at(flops=0.6), settings_for(plan, len(x), 0)
    monkeypatch.setattr(joint_refinement, "_RATES", (1e3,))
    alone, together = (
        reconstructed_model(net, EXAMPLE, plan, cut, "linear", x, 0, None, replace(settings, together=way))
        for way in (False, True)
    )
    assert together.notes == ("refining all layers together did no good on held-out images: left out",)
    for a, b in zip(alone.model.parameters(), together.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_large_networks_and_few_images_are_left_as_they_are() -> None:
    plan = slimilar.analyze(network(), EXAMPLE)
    cut = plan.at(flops=0.6)
    large = replace(cut, before=replace(cut.before, flops=10**10))
    many, few = (hold_out(list(photos(n).split(n))) for n in (160, 100))
    assert (image_visits(cut, many), image_visits(cut, few), image_visits(large, many)) == (16 * 120, 0, 0)


def test_nothing_of_the_given_model_changes_and_it_is_the_same_every_time() -> None:
    net, x = network(), photos(160)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    a, b = (slimilar.prune(net, EXAMPLE, flops=0.6, calibration=x, seed=3).model for _ in range(2))
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(
        torch.equal(s, t) for s, t in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
    assert all(p.requires_grad for p in a.parameters())


def test_inference_mode_changes_nothing() -> None:
    net, x = network(), photos(160)
    with torch.inference_mode():
        inside = slimilar.prune(net, EXAMPLE, flops=0.6, calibration=x)
    outside = slimilar.prune(net, EXAMPLE, flops=0.6, calibration=x)
    assert inside.notes == outside.notes
    for a, b in zip(inside.model.parameters(), outside.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not a.is_inference()


def test_where_steps_fail_what_was_fitted_is_returned_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_gradient(*_: Any) -> Any:
        raise NotImplementedError("derivative for aten::odd is not implemented\nmore")

    monkeypatch.setattr(joint_refinement._Loss, "of", no_gradient)
    net, x = network(), photos(160)
    result = slimilar.prune(net, EXAMPLE, flops=0.6, calibration=x)
    assert result.notes[-1].startswith(
        "all layers were not refined together, because steps raised: derivative "
    )
    assert result.error is not None
    assert result.error < 1e-4


def test_a_chain_is_left_as_least_squares_made_it() -> None:
    net, x = small_net(), images(160)
    assert not any("refin" in note for note in slimilar.prune(net, x[:1], flops=0.6, calibration=x).notes)


def test_a_caller_can_stop_it() -> None:
    """What the progress callback raises is no failure of the steps."""

    def stop(title: str, *_: int) -> None:
        if title == "refining all layers":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        slimilar.prune(network(), EXAMPLE, flops=0.6, calibration=photos(160), progress=stop)
