"""How often taps meet the image: counted by running the convolution itself on ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.calibration.consumers import find_consumers
from slimilar.calibration.program import program_of
from slimilar.pipeline import apply

CASES = [
    (nn.Conv2d(1, 1, 3, padding=1), (1, 1, 5, 4)),
    (nn.Conv2d(1, 1, 3, padding=1), (1, 1, 2, 2)),
    (nn.Conv2d(1, 1, (5, 3), stride=2, padding=(2, 0), dilation=(1, 2)), (1, 1, 9, 12)),
    (nn.Conv2d(1, 1, 1, stride=2), (1, 1, 6, 6)),
    (nn.Conv1d(1, 1, 5, stride=3, padding=2), (1, 1, 17)),
    (nn.Conv3d(1, 1, 3, padding=(1, 1, 0)), (1, 1, 3, 4, 5)),
    (nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1, output_padding=1), (1, 1, 4, 5)),
    (nn.ConvTranspose2d(1, 1, 4, stride=2, padding=1), (1, 1, 3, 3)),
]


def counted(conv: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Switch on one tap at a time, and see how much of the output a image of ones fills."""
    found = []
    for tap in range(conv.weight[0, 0].numel()):
        weight = torch.zeros(conv.weight.shape)
        weight.view(-1)[tap] = 1
        with torch.no_grad():
            found.append(torch.func.functional_call(conv, {"weight": weight}, torch.ones(shape)).mean())
    return torch.stack(found).double()


@pytest.mark.parametrize(("conv", "shape"), CASES, ids=lambda x: str(x) if isinstance(x, tuple) else "")
def test_taps_meet_the_picture_as_often_as_they_do_when_it_runs(conv, shape):
    kind, norm = {3: (nn.Conv1d, nn.BatchNorm1d), 4: (nn.Conv2d, nn.BatchNorm2d), 5: (nn.Conv3d, nn.BatchNorm3d)}[
        len(shape)
    ]  # fmt: skip
    options = {k: getattr(conv, k) for k in ("kernel_size", "stride", "padding", "dilation")}
    if isinstance(conv, nn.ConvTranspose2d):
        options["output_padding"] = conv.output_padding
    conv.bias.data.zero_()
    model = nn.Sequential(kind(3, 6, 1), norm(6), nn.ReLU(), type(conv)(6, 4, **options)).eval()
    example = torch.zeros(1, 3, *shape[2:])
    plan = slimilar.analyze(model, example)
    consumers = find_consumers(
        plan.structure.trace, plan.structure.grouping, program_of(model, example, plan.structure, 1)
    )
    assert torch.allclose(consumers[-1].covered, counted(conv, shape), atol=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_a_constant_channel_leaves_the_mean_of_its_readers_as_it_was(size):
    """A channel that always says the same can be replaced by a constant; at borders only on average."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1)
    ).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, 1, 1, 1, 1, 1, 1e-4, 1e-4]))
        model[1].bias.copy_(torch.tensor([0.0, 0.5, 1, -0.5, 0.2, 0.1, 2, 2]))
    x = torch.randn(64, 3, size, size)
    plan = slimilar.analyze(model, x[:1])
    cut = plan.at(threshold=1e-4)
    assert cut.kept["0"] == (0, 1, 2, 3, 4, 5, 6) or cut.kept["0"] == (0, 1, 2, 3, 4, 5, 7)
    small = apply(model, x[:1], plan, cut, substitute="mean").model
    with torch.no_grad():
        assert torch.allclose(small(x).mean((0, 2, 3)), model(x).mean((0, 2, 3)), atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_without_data_a_reader_speaks_as_loud_as_before(groups):
    """Against a sample of Gaussian channels: where some left, mean and spread of every output are the original's."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.Conv2d(12, 6, 1, groups=groups, bias=False)
    ).eval()
    with torch.no_grad():
        model[0].weight[6:8] = model[0].weight[:2] + 0.05 * torch.randn(2, 3, 1, 1)
        model[1].weight.uniform_(0.3, 1)
        model[1].bias.normal_()
        model[1].running_var.copy_(model[0].weight.flatten(1).square().sum(1))
        model[1].running_mean.copy_(model[0].bias)
    x = torch.randn(4000, 3, 3, 3)
    plan = slimilar.analyze(model, x[:1], criterion="magnitude-l2")
    cut = plan.at(flops=0.75)
    assert len(cut.kept["0"]) < 12
    small = apply(model, x[:1], plan, cut, substitute="linear").model
    with torch.no_grad():
        ours, wanted = (m(x).movedim(1, -1).flatten(0, -2).double() for m in (small, model))
    assert torch.allclose(ours.mean(0), wanted.mean(0), atol=0.02)
    assert torch.allclose(ours.std(0), wanted.std(0), rtol=0.05)


@pytest.mark.parametrize("silent", [slice(None), slice(0, 5)])
def test_channels_that_never_vary_are_not_made_louder(silent):
    """Batch norms may start at zero: there is no spread to restore, and nothing must be divided by it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
    ).eval()
    with torch.no_grad():
        model[1].weight[silent] = 0
    x = torch.randn(4, 3, 8, 8)
    small = slimilar.prune(model, x[:1], flops=0.6, criterion="magnitude-l2", substitute="linear").model
    with torch.no_grad():
        assert torch.isfinite(small(x)).all()
        if silent == slice(None):
            assert torch.allclose(small(x), model(x), atol=1e-6), "all of it is constant"
