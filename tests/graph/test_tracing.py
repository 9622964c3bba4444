"""One forward pass: inputs and outputs of all kinds, values where shapes are not enough, nothing touched."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import slimilar
from slimilar.errors import InvalidInput, SlimilarWarning, TraceError
from slimilar.graph.grouping import find_groups
from slimilar.graph.labels import atoms_in, side_by_side
from slimilar.graph.tracing import trace

X = torch.randn(2, 3, 8, 8)


def chain(*middle: nn.Module, width: int = 6) -> nn.Sequential:
    """Return two convolutions with something between."""
    return nn.Sequential(nn.Conv2d(3, width, 3), *middle, nn.Conv2d(width, 2, 3))


def test_the_model_is_not_touched():
    net = chain(nn.BatchNorm2d(6)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    trace(net, X)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_shapes_are_enough():
    assert trace(chain(nn.ReLU()), X).meta


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y if x.mean().item() < 1e9 else -y)


def test_a_model_that_looks_at_values_is_run_on_values():
    assert not trace(LooksAtValues(), X).meta
    assert slimilar.remove_channels(LooksAtValues(), X, {"a": [0]}).a.out_channels == 5


def test_operators_are_named_with_their_modules():
    found = trace(chain(nn.ReLU()), X)
    assert [(op.name, op.module) for op in found.ops] == [
        ("aten.convolution", "0"), ("aten.relu", "1"), ("aten.convolution", "2"),
    ]  # fmt: skip


# --- what goes in and comes out -------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, left: Tensor, right: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.out(self.a(left) + scale * self.b(right))


@pytest.mark.parametrize(
    "example",
    [(X, X), [X, X], {"left": X, "right": X}, {"left": X, "right": X, "scale": 2.0}],
    ids=["tuple", "list", "dict", "keywords"],
)
def test_several_inputs(example):
    small = slimilar.remove_channels(TwoInputs(), example, {"a": [1, 4]})
    assert (small.a.out_channels, small.b.out_channels, small.out.in_channels) == (4, 4, 4)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Outputs(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.a, self.b, self.c, self.wrap = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 2, 1), wrap

    def forward(self, batch: dict[str, Tensor]):
        y = self.b(self.a(batch["image"]))
        return self.wrap(y, self.c(y))


@pytest.mark.parametrize(
    "wrap", [lambda a, b: (a, b), lambda a, b: {"a": a, "b": [b]}, Pair], ids=["tuple", "dict", "named"]
)
def test_nested_inputs_and_outputs(wrap):
    example = ({"image": X},)
    plan = slimilar.analyze(Outputs(wrap), example)
    assert {(f.name, f.reason) for f in plan.frozen} >= {("b", "model output"), ("c", "model output")}
    assert slimilar.remove_channels(Outputs(wrap), example, {"a": [2]}).b.in_channels == 5


def test_examples_that_do_not_fit_are_refused_in_words():
    with pytest.raises(TraceError, match=r"must run on its example input, but on shapes \[\(1, 4, 8, 8\)\]"):
        trace(chain(), torch.zeros(1, 4, 8, 8))
    with pytest.raises(InvalidInput, match="got str"):
        trace(chain(), "image")


# --- odd but real -----------------------------------------------------------------------------------------------


def pruned(net: nn.Module, layer: str = "0", example: object = X) -> nn.Module:
    return slimilar.remove_channels(net, example, {layer: [1]})


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(6, affine=False), nn.BatchNorm2d(6, track_running_stats=False), nn.SyncBatchNorm(6),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True), nn.PReLU(6), nn.GroupNorm(6, 6),
    ],
    ids=lambda m: str(m)[:40],
)  # fmt: skip
def test_norms_of_all_kinds(norm):
    small = pruned(chain(norm))
    assert small[2].in_channels == 5
    assert all(t.shape[0] == 5 for t in small[1].state_dict().values() if t.ndim == 1)


class Frozen(nn.Module):
    """A batch norm of buffers only, as detectors use it."""

    def __init__(self, c: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(c) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.weight * (self.running_var + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


def test_frozen_batch_norm():
    assert pruned(chain(Frozen(6)))[1].weight.shape == (5,)


def test_frozen_batch_norm_speaks_for_its_channels():
    frozen, usual = chain(Frozen(6)).double(), chain(nn.BatchNorm2d(6)).double()
    usual[1].load_state_dict(frozen[1].state_dict(), strict=False)
    x = X.double()
    plans = [slimilar.analyze(net, x) for net in (frozen, usual)]
    assert [[n.module for n in g.batch_norms] for g in plans[0].groups] == [["1"]]
    heights = [[o.heights.tolist() for o in plan.orders] for plan in plans]
    assert heights[0] == heights[1]


def test_distributed_data_parallel_is_unwrapped(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        with pytest.warns(SlimilarWarning, match="wrap it in DistributedDataParallel again"):
            small = pruned(nn.parallel.DistributedDataParallel(chain()))
    finally:
        distributed.destroy_process_group()
    assert isinstance(small, nn.Sequential)
    assert small[0].out_channels == 5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight
        self.stem, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(self.stem(x)).relu()))


def test_tied_weights_stay_tied():
    small = pruned(Tied(), "stem", torch.randn(4, 3))
    assert small.a.weight is small.b.weight
    assert small.a.weight.shape == (5, 5)


@pytest.mark.parametrize("wrap", [weight_norm, spectral_norm])
def test_parametrised_weights_are_handled_or_left_whole(wrap):
    net = nn.Sequential(
        wrap(nn.Conv2d(3, 6, 3)), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 3)
    )
    groups = {g.name for g in find_groups(trace(net, X), "joint").groups}
    assert "2" in groups
    assert pruned(net, "2")[4].in_channels == 4


def test_half_precision():
    assert pruned(chain(nn.BatchNorm2d(6)).half(), example=X.half())[0].weight.dtype is torch.float16


def test_channels_last():
    small = pruned(chain().to(memory_format=torch.channels_last))
    assert small[1].weight.is_contiguous(memory_format=torch.channels_last)


def test_meta_device():
    net = chain(nn.BatchNorm2d(6)).to("meta")
    small = slimilar.remove_channels(net, X, {"0": [0]})
    assert small[2].weight.is_meta
    assert small[2].weight.shape[1] == 5


def test_wrapped_models_are_unwrapped():
    with pytest.warns(SlimilarWarning, match="wrap it in DataParallel again"):
        assert pruned(nn.DataParallel(chain()))[0].out_channels == 5
    assert pruned(torch.compile(chain(), backend="eager"))[0].out_channels == 5


def test_what_cannot_be_copied_is_refused_in_words():
    """A manager around a network holds locks, files or threads."""
    manager = chain(nn.BatchNorm2d(6))
    manager.lock = threading.Lock()
    with pytest.raises(
        slimilar.errors.TraceError, match="can be copied, but copying Sequential raised TypeError"
    ):
        slimilar.analyze(manager, X)


def test_torchscript_is_refused_in_words():
    with torch.no_grad(), pytest.warns(DeprecationWarning, match="jit"):
        script = torch.jit.trace(chain(), X)
    with pytest.raises(InvalidInput, match="TorchScript"):
        slimilar.analyze(script, X)


@pytest.mark.parametrize("d", [1, 3])
def test_one_and_three_dimensions(d):
    conv, norm = getattr(nn, f"Conv{d}d"), getattr(nn, f"BatchNorm{d}d")
    net = nn.Sequential(conv(3, 6, 3), norm(6), nn.ReLU(), conv(6, 2, 3))
    small = pruned(net, example=torch.randn(2, 3, *(8,) * d))
    assert small[3].in_channels == 5


def test_gradients_and_modes_are_kept():
    net = chain(nn.BatchNorm2d(6)).train()
    net[0].weight.requires_grad_(False)
    small = pruned(net)
    assert small.training
    assert not small[0].weight.requires_grad
    assert small[1].weight.requires_grad


class Auxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.aux = (
            nn.Conv2d(3, 6, 1),
            nn.Conv2d(6, 2, 1),
            nn.Sequential(nn.Conv2d(6, 4, 1), nn.Dropout2d()),
        )

    def forward(self, x: Tensor):
        y = self.a(x)
        return (self.b(y), self.aux(y)) if self.training else self.b(y)


def test_parts_that_run_only_in_training_lose_their_channels_too():
    small = pruned(Auxiliary(), "a")
    assert small.aux[0].in_channels == 5
    small.train()(X)


class Picky(nn.Module):
    """A head that runs in training only, on images that are large enough for its kernel."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.head = nn.Sequential(nn.Conv2d(6, 5, 9), nn.Conv2d(5, 2, 1))

    def forward(self, x):
        y = self.a(x).relu()
        return (self.b(y), self.head(y)) if self.training else self.b(y)


def test_a_part_for_training_that_cannot_run_on_the_example_is_named():
    said = {f.name: f for f in slimilar.analyze(Picky(), torch.zeros(1, 3, 8, 8)).frozen}
    assert said["head"].width == 7
    assert said["head"].reason.startswith("runs only in training and fails on the example (")
    large = torch.zeros(1, 3, 16, 16)
    assert "head" not in {f.name for f in slimilar.analyze(Picky(), large).frozen}
    assert slimilar.remove_channels(Picky(), large, {"a": [0]}).head[0].in_channels == 5


# --- many at once -----------------------------------------------------------------------------------------------


def test_threads_do_not_disturb_each_other():
    widths = list(range(4, 12))
    found: dict[int, int] = {}

    def work(width: int) -> None:
        net = chain(nn.BatchNorm2d(width), width=width)
        found[width] = slimilar.remove_channels(net, X, {"0": [1, 2]})[0].out_channels

    threads = [threading.Thread(target=work, args=(w,)) for w in widths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {w: w - 2 for w in widths}


# --- labels that repeat -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((5, 6), (5, 6)), ((1, 5, 6), (1, 1, 6)), ((4, 1, 3), (1, 5, 1)), ((7,), (1,))]
)
def test_pairs_are_those_of_every_position(shapes):
    random = torch.Generator().manual_seed(2)
    for _ in range(20):  # few numbers, so that slices are often alike; -1 is CONSTANT
        a, b = (torch.randint(-1, 2, shape, generator=random) for shape in shapes)
        x, y = side_by_side(a, b)
        every = zip(*(t.flatten().tolist() for t in torch.broadcast_tensors(a, b)), strict=True)
        assert set(zip(x.tolist(), y.tolist(), strict=True)) == set(every)
        assert atoms_in([a]).tolist() == sorted(set(a.flatten().tolist()) - {-1})


class Tokens(nn.Module):
    """A transformer's stream: a class token before those of the image, which all have the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 24, 2, 2), nn.Parameter(torch.zeros(1, 1, 24))
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_ties_do_not_multiply_with_tokens():
    few, many = (trace(Tokens(), torch.zeros(1, 3, side, side)) for side in (8, 64))
    assert few.ties.shape == many.ties.shape
    assert few.sums.shape == many.sums.shape
