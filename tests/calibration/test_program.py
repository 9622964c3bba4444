"""One program for each batch size, derived from the trace; models that cannot be replayed are told why."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.fitting import generator, images, small_net
from slimilar.calibration import program as module
from slimilar.calibration import replay
from slimilar.calibration.calibration_set import calibration_set
from slimilar.calibration.consumers import find_consumers
from slimilar.calibration.program import NotReplayable, Program, program_for, program_of, record
from slimilar.errors import InvalidInput, SlimilarWarning
from slimilar.surgery.probe import find_structure
from slimilar.utils.modules import named_tensors


def outputs(program: Program, net: nn.Module, x: Tensor) -> Tensor:
    values = replay.start(program, [x])
    with torch.no_grad():
        replay.run(program, values, named_tensors(net))
    return values[program.outputs[0]]


def test_a_prune_with_images_traces_each_batch_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    trace = module.trace

    def counting(model: nn.Module, example: Tensor, choices: object) -> object:
        sizes.append(len(example))
        return trace(model, example, choices)

    monkeypatch.setattr(module, "trace", counting)
    slimilar.prune(small_net(), images(1), flops=0.6, calibration=images(64))
    assert len(sizes) == len(set(sizes))
    assert 1 not in sizes, "that is the trace which the analysis has made"


def test_operators_are_those_of_the_trace() -> None:
    net = small_net()
    structure = find_structure(net, images(1))
    program = program_of(net, images(1), structure)
    assert program.trace is structure.trace
    assert [i.func for i in program.instructions] == [op.func for op in structure.trace.ops]
    assert program_of(net, images(1), structure) is program
    assert replay.resized(program, 8) is program_of(net, images(1), structure, 8)
    assert (replay.resized(program, 8).batch_size, program.batch_size) == (8, 1)
    assert torch.allclose(outputs(replay.resized(program, 8), net, images(8)), net(images(8)), atol=1e-5)


class ByBatch(nn.Module):
    """Runs other operators on a single image, as attention and pooling code does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_net()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body[:9](x)
        y = y.squeeze(0).mean((1, 2))[None] if len(x) == 1 else self.body[9:11](y)
        return self.body[11](y)


def test_consumers_are_found_where_operators_differ_by_batch_size() -> None:
    net, x = ByBatch().eval(), images(64)
    structure = find_structure(net, x[:1])
    one, many = (program_of(net, x[:1], structure, size) for size in (1, 16))
    assert len(one.instructions) != len(many.instructions)
    assert torch.allclose(outputs(many, net, x[:16]), net(x[:16]), atol=1e-5)
    found = [
        {c.module: (c.weight, c.units.tolist()) for c in find_consumers(p.trace, structure.grouping, p)}
        for p in (one, many)
    ]
    assert found[0] == found[1]
    with pytest.raises(NotReplayable, match="different operators"):
        replay.resized(many, 1)
    result = slimilar.prune(net, x[:1], flops=0.6, calibration=x)
    assert result.substitute != "none"
    assert result.error is not None
    assert result.error < 1e-4
    plain = slimilar.prune(net, x[:1], flops=0.6, calibration=x, substitute="none")
    with torch.no_grad():
        errors = [float((r.model(x) - net(x)).square().mean()) for r in (result, plain)]
    assert errors[0] < errors[1]


class FixedBatch(nn.Module):
    """Code with the batch size written in, as exported models have it."""

    def __init__(self, size: int, checked: bool) -> None:
        super().__init__()
        self.size, self.checked = size, checked
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Linear(8 * 9 if checked else 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        return self.b(y.view(self.size, -1) if self.checked else y.view(self.size, y.shape[1], -1).mean(2))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("checked", [True, False])
def test_a_fixed_batch_size_is_kept_with_a_warning(size: int, checked: bool) -> None:
    net, x = FixedBatch(size, checked).eval(), torch.randn(40, 3, 5, 5, generator=generator())
    structure = find_structure(net, x[:size])
    data = calibration_set(x, None, x[:size])
    with pytest.warns(SlimilarWarning, match=rf"batches of {size}, .* because on a batch of 40 images it"):
        program, data = program_for(net, x[:size], structure, data)
    assert program.batch_size == data.batch_size == size
    assert len(data.batches) == 40 // size
    for options in ({"substitute": "none"}, {"substitute": "mean"}, {"calibration": x}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlimilarWarning)
            result = slimilar.prune(net, x[:size], ratio=0.5, criterion="magnitude-l2", **options)
        assert result.model(x[:size]).shape == (size, 4)
    with pytest.raises(NotReplayable, match="on a batch of 40"):
        program_of(net, x[:size], structure, 40)


class Looks(nn.Module):
    """A network that looks at values, so that its operators cannot be replayed without them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (1.0 if float(x.sum()) > -1e9 else 2.0)


def test_models_that_look_at_values_are_pruned_without_reconstruction_and_with_a_warning() -> None:
    with pytest.warns(
        SlimilarWarning, match="not reconstructed, because its code depends on the values of tensors"
    ):
        result = slimilar.prune(Looks().eval(), images(1), threshold=0.3)
    assert result.substitute == "none"
    for options in ({"substitute": "mean"}, {"calibration": images(64)}):
        with pytest.raises(InvalidInput, match="depends on the values of tensors"):
            slimilar.prune(Looks().eval(), images(1), threshold=0.3, **options)


class Routed(nn.Module):
    """A weight computed from a parameter: kernels of experts, mixed by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.out = nn.Linear(6, 4), nn.Linear(15, 2)
        self.experts = nn.Parameter(torch.randn(4, 5, 3, generator=generator()))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.route(x).sigmoid() @ self.experts.flatten(1))


class Standardised(nn.Conv2d):
    """A convolution whose weight is standardised on the way."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.flatten(1).std(1)[:, None, None, None]
        return nn.functional.conv2d(x, weight, self.bias)


@pytest.mark.parametrize("how", ["none", "merge", "mean", "auto", "images"])
def test_weights_computed_from_a_parameter_are_not_refitted(how: str) -> None:
    net, x = Routed().eval(), torch.randn(64, 6, generator=generator())
    options = {"calibration": x} if how == "images" else {"substitute": how}
    result = slimilar.prune(net, x[:2], ratio=0.5, criterion="magnitude-l2", **options)
    assert torch.equal(result.model.experts, net.experts[list(result.kept["route"])])
    structure = find_structure(net, x[:2])
    program = program_of(net, x[:2], structure)
    found = find_consumers(program.trace, structure.grouping, program)
    assert "experts" not in {c.weight for c in found}
    made = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Standardised(8, 4, 1)).eval()
    program = record(made, images(1))
    structure = find_structure(made, images(1))
    assert all(c.module != "2" for c in find_consumers(program.trace, structure.grouping, program))


def test_pooling_over_channels_is_calibrated() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool3d((1, 3, 3), stride=(2, 1, 1)), nn.Conv2d(8, 4, 1),
    ).eval()  # fmt: skip
    for norm in (net[1], net[4]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    result = slimilar.prune(net, images(1), flops=0.8, calibration=images(64))
    assert len(result.kept["0"]) < 32
    assert result.error is not None
    assert result.error < 1e-4


class Head(nn.Module):
    """A head as detectors of ultralytics have one: it takes numbers out of tensors while it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.stride, self.conv = torch.tensor([8.0]), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x) * self.stride.item()
        return found


class Detector(nn.Module):
    """A network that ends in such a head."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Head())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x)
        return found * float(found.sum() > -1e9)


def test_a_detector_is_told_how_to_be_passed() -> None:
    with pytest.raises(NotReplayable, match=r"meta tensors.*RawPredictions\(model\) instead"):
        slimilar.prune(Detector().eval(), images(1), flops=0.6, calibration=images(32))


def test_numbers_before_an_operator_are_those_that_a_run_holds_there() -> None:
    net = small_net()
    structure = find_structure(net, images(1))
    program = program_of(net, images(1), structure, 4)
    values, position = replay.start(program, [images(4)]), 0
    stops = sorted(consumer.op for consumer in find_consumers(program.trace, structure.grouping, program))
    assert len(stops) > 1
    for stop, expected in zip(stops, program.numbers_before(stops), strict=True):
        replay.run(program, values, named_tensors(net), position, stop)
        position = stop
        held = [t for v, t in values.items() if program.trace.values[v].dynamic]  # not a transposed weight
        assert sum(t.numel() for t in held) == expected
