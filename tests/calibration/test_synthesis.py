"""Images made from a network's batch-norm statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from helpers.fitting import generator, images, small_net
from slimilar.calibration.synthesis import _natural_noise, synthesize
from slimilar.errors import InvalidInput


def test_synthesised_images_match_the_statistics_and_serve() -> None:
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
def test_images_are_synthesised_in_the_models_precision(dtype: torch.dtype) -> None:
    net = small_net().to(dtype)
    made = synthesize(net, images(1).to(dtype), count=4, steps=2)
    assert made.dtype == dtype
    assert {t.dtype for t in net.parameters()} == {dtype}
    assert torch.allclose(made.float(), synthesize(net.float(), images(1), count=4, steps=2), atol=2e-3)


def test_synthesised_images_have_the_colours_of_the_training_data() -> None:
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
