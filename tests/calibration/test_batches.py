"""Images to fit to: those given, their horizontal flips, and those made from a network itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.fitting import generator, images, small_net
from slimilar.calibration import replay
from slimilar.calibration.batches import to_batches
from slimilar.calibration.flips import with_flips
from slimilar.calibration.synthesis import _natural_noise, synthesize
from slimilar.errors import InvalidInput
from slimilar.reconstruction.apply import settings_for
from slimilar.utils.modules import named_tensors


@pytest.mark.parametrize("once", [True, False])
def test_calibration_is_gone_through_once(once: bool) -> None:
    """A generator has no second pass, and a loader that shuffles would show choice and fit different images."""
    net, x = small_net(), images(12)
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
    x = images(20)
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
        slimilar.prune(small_net(), images(1), flops=0.8, calibration=given)


def test_synthesised_pictures_match_the_statistics_and_serve() -> None:
    net = small_net()
    before = copy.deepcopy(net.state_dict())
    seen: list[tuple[str, int, int]] = []
    made = synthesize(
        net, images(1), count=32, steps=40, batch=16, seed=3, progress=lambda *a: seen.append(a)
    )
    again = synthesize(net, images(1), count=32, steps=40, batch=16, seed=3)
    assert torch.equal(made, again)
    assert seen[-1][1:] == (40, 40)  # the other half are horizontal flips
    assert torch.equal(made[:16].flip(-1), made[16:])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())

    def gap(x: Tensor) -> float:
        with torch.no_grad():
            y = net[0](x)
        scale = net[1].running_var.sqrt()
        return float(((y.mean((0, 2, 3)) - net[1].running_mean) / scale).square().mean())

    assert gap(made) < 0.1 * gap(torch.randn(32, 3, 12, 12, generator=generator(5)) + 0.5)
    with pytest.raises(InvalidInput, match="batch norms"):
        synthesize(nn.Conv2d(3, 4, 1), images(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_pictures_are_synthesised_in_the_models_precision(dtype: torch.dtype) -> None:
    net = small_net().to(dtype)
    made = synthesize(net, images(1).to(dtype), count=4, steps=2)
    assert made.dtype == dtype
    assert {t.dtype for t in net.parameters()} == {dtype}
    assert torch.allclose(made.float(), synthesize(net.float(), images(1), count=4, steps=2), atol=2e-3)


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


def test_mirror_images_go_in_where_a_network_takes_them_for_the_same() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    sided = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    with torch.no_grad():
        sided[1].weight.zero_()
        sided[1].weight.view(3, 3, 8, 8)[[0, 1], 0, :, [0, -1]] = 1.0  # which side is brighter
    x = images(16)[:, :3, :8, :8]
    blind, seeing = (
        with_flips(list(x.split(8)), replay.record(net, x[:8]), named_tensors(net)) for net in (head, sided)
    )
    assert torch.equal(torch.cat(blind), torch.cat([x, x.flip(-1)]))
    assert torch.equal(torch.cat(seeing), x)
    program, tensors = replay.record(head, x[:8]), named_tensors(head)
    assert len(with_flips(blind, program, tensors)) == 4, "not twice"
    blank = torch.cat([torch.zeros_like(x[:1]), x[1:]])
    assert len(with_flips(list(blank.split(8)), program, tensors)) == 4, "a blank one says nothing"


def test_a_large_network_is_fitted_thriftily() -> None:
    plan = slimilar.analyze(small_net(), images(1))
    few = settings_for(plan, 16, seed=3)
    many = settings_for(plan, 10**12 // plan.before.flops + 1, seed=3)
    assert (few.mirror, many.mirror) == (True, False)
    assert many.steps < few.steps
    assert many.effort < few.effort
    assert few.seed == many.seed == 3
