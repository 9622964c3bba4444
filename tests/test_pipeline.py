"""analyze, plan.at, prune, remove_channels: from a model to a smaller, verified one."""

from __future__ import annotations

import copy
import gc
import math
import re
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar import models
from slimilar.errors import InvalidInput, NothingToPrune, TraceError, UnreachableBudget
from slimilar.similarity.distances import channel_distance, normalise
from slimilar.similarity.linkage import linkage_tree, removal_order
from slimilar.similarity.removal_order import clusters

IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))


def trained(net: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms the look of training: spread gammas, betas and statistics."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.uniform_(0.1, 1.5, generator=g)
                m.bias.normal_(0, 0.5, generator=g)
                m.running_mean.normal_(0, 0.3, generator=g)
                m.running_var.uniform_(0.5, 1.5, generator=g)
    return net.eval()


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(out)) + x).relu()


class Net(nn.Module):
    """A stem, two residual blocks, a head."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(12)
        self.block1, self.block2 = Block(12, 20), Block(12, 16)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x)).relu()
        return self.head(self.block2(self.block1(x)).mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(1)
    return trained(Net())


def masked(net: nn.Module, kept: dict[str, tuple[int, ...]], consumers: dict[str, list[str]]) -> nn.Module:
    """An independent reference: silence removed channels by zeroing what reads them."""
    net = copy.deepcopy(net).double()
    with torch.no_grad():
        for group, names in consumers.items():
            for name in names:
                weight = net.get_submodule(name).weight
                gone = [i for i in range(weight.shape[1]) if i not in kept[group]]
                weight[:, gone] = 0
    return net


# --- analyze ----------------------------------------------------------------------------------------------------


def test_groups_and_frozen(net: nn.Module) -> None:
    plan = slimilar.analyze(net, IMAGE)
    assert [(g.name, g.width) for g in plan.groups] == [("block1.conv1", 20), ("block2.conv1", 16)]
    group = plan.groups[0]
    assert {(m.tensor, m.axis) for m in group.members} == {
        ("block1.conv1.weight", 0), ("block1.bn1.weight", 0), ("block1.bn1.bias", 0),
        ("block1.bn1.running_mean", 0), ("block1.bn1.running_var", 0), ("block1.conv2.weight", 1),
    }  # fmt: skip
    assert [b.module for b in group.batch_norms] == ["block1.bn1"]
    assert [r.module for r in group.consumers] == ["block1.conv2"]
    assert ("aten.relu", "block1") in group.through
    reasons = {f.name: f.reason for f in plan.frozen}
    assert "residual" in reasons["stem"]
    assert reasons["head"] == "model output"


def test_the_paper_by_hand(net: nn.Module) -> None:
    """One group against the paper's steps written out with the functions of `similarity`."""
    plan = slimilar.analyze(net, IMAGE)
    bn = net.get_submodule("block1.bn1")
    distance = normalise(channel_distance(bn.bias, bn.weight))
    order = removal_order(linkage_tree(distance), bn.weight)
    for t in (0.0, 0.05, 0.2, 0.6):
        wanted = [c.representative for c in clusters(order, t, 20)]
        cut = plan.at(threshold=t, round_to=1)
        assert list(cut.kept["block1.conv1"]) == sorted(wanted)
        assert {c.members for c in cut.clusters["block1.conv1"]} == {
            c.members for c in clusters(order, t, 20)
        }


def test_untrained_and_absent_batch_norms_are_named() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )
    plan = slimilar.analyze(net, IMAGE)
    reasons = {f.name: f.reason for f in plan.frozen}
    assert reasons["0"].startswith("untrained batch norm")
    assert reasons["3"].startswith("no batch norm")
    with pytest.raises(NothingToPrune, match="untrained batch norm"):
        slimilar.prune(net, IMAGE, threshold=0.5)


def test_exclude_by_name_module_and_parent(net: nn.Module) -> None:
    for exclude in (["block1.conv1"], [net.block1], "block1"):
        plan = slimilar.analyze(net, IMAGE, exclude=exclude)
        assert [g.name for g in plan.groups] == ["block2.conv1"]
        assert [f.name for f in plan.frozen if f.reason == "excluded"] == ["block1.conv1"]


def test_joint_distance_is_the_sum_over_batch_norms(net: nn.Module) -> None:
    plan = slimilar.analyze(net, IMAGE, residual="joint")
    stream = next(g for g in plan.groups if g.name == "stem")
    assert [b.module for b in stream.batch_norms] == ["bn", "block1.bn2", "block2.bn2"]
    parts = [net.get_submodule(b.module) for b in stream.batch_norms]
    distance = sum(channel_distance(bn.bias, bn.weight) for bn in parts)
    gamma = sum(bn.weight.detach().abs() for bn in parts)
    order = removal_order(linkage_tree(normalise(distance)), gamma)
    assert list(plan.at(threshold=0.3).kept["stem"]) == sorted(
        c.representative for c in clusters(order, 0.3, 12)
    )


def test_nothing_is_touched(net: nn.Module) -> None:
    before = copy.deepcopy(net.state_dict())
    net.train()
    slimilar.prune(net, IMAGE, threshold=0.5)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# --- plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", ["inner", "joint"])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 1.0])
def test_plan_equals_a_recount(net: nn.Module, residual: str, threshold: float) -> None:
    result = slimilar.prune(net, IMAGE, threshold=threshold, residual=residual)
    recount = slimilar.count(result.model, IMAGE)
    cut = result.cut
    assert (cut.flops, cut.macs, cut.params) == (recount.flops, recount.macs, recount.params)


def test_zero_is_the_identity(net: nn.Module) -> None:
    result = slimilar.prune(net, IMAGE, threshold=0.0)
    assert torch.equal(result.model(IMAGE), net(IMAGE))
    assert result.cut.flops == slimilar.count(net, IMAGE).flops


def test_budget_is_met_by_the_smallest_threshold(net: nn.Module) -> None:
    plan = slimilar.analyze(net, IMAGE)
    for kind in ("flops", "macs", "params"):
        cut = plan.at(**{kind: 0.6})
        limit = 0.6 * getattr(plan.before, kind)
        assert getattr(cut, kind) <= limit
        below = plan.at(threshold=float(np.nextafter(cut.threshold, 0)))
        assert getattr(below, kind) > limit
    assert plan.at(flops="60%").kept == plan.at(flops=0.6).kept
    assert plan.at(flops=int(0.6 * plan.before.flops)).kept == plan.at(flops=0.6).kept


def test_curve_agrees_with_at(net: nn.Module) -> None:
    plan = slimilar.analyze(net, IMAGE, residual="joint")
    curve = plan.curve()
    assert curve[0].flops == plan.before.flops
    assert (np.diff(curve.flops) <= 0).all()
    assert (np.diff(curve.threshold) > 0).all()
    for i in (0, 1, len(curve) // 2, len(curve) - 1):
        cut = plan.at(threshold=min(1.0, curve[i].threshold), round_to=1)
        assert (cut.flops, cut.macs, cut.params) == (curve[i].flops, curve[i].macs, curve[i].params)
        assert dict(cut.widths) == dict(curve[i].widths)


def test_rounding_only_gives_back(net: nn.Module) -> None:
    plan = slimilar.analyze(net, IMAGE)
    plain, rounded = plan.at(threshold=0.3), plan.at(threshold=0.3, round_to=8)
    for name, width in rounded.widths.items():
        full = next(g.width for g in plan.groups if g.name == name)
        assert width % 8 == 0 or width == full
        assert set(plain.kept[name]) <= set(rounded.kept[name])
    assert plan.at(flops=0.7, round_to=4).flops <= 0.7 * plan.before.flops


def test_min_channels_and_single_layer_thresholds(net: nn.Module) -> None:
    assert min(slimilar.analyze(net, IMAGE, min_channels=5).at(threshold=1.0).widths.values()) >= 5
    assert min(slimilar.analyze(net, IMAGE).at(threshold=1.0).widths.values()) >= 1
    plan = slimilar.analyze(net, IMAGE)
    cut = plan.at(threshold=0.4, thresholds={"block1.conv1": 0.0})
    assert cut.widths["block1.conv1"] == 20
    assert cut.widths["block2.conv1"] == plan.at(threshold=0.4).widths["block2.conv1"]


# --- rewrite ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.8])
def test_masked_original_equals_rewritten(net: nn.Module, threshold: float) -> None:
    result = slimilar.prune(net, IMAGE, threshold=threshold, substitute="none", round_to=1)
    consumers = {"block1.conv1": ["block1.conv2"], "block2.conv1": ["block2.conv2"]}
    reference = masked(net, dict(result.kept), consumers)
    given = result.model.double()(IMAGE.double())
    assert torch.allclose(given, reference(IMAGE.double()), rtol=0, atol=1e-12)


def test_permuting_channels_permutes_the_answer(net: nn.Module) -> None:
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    other = copy.deepcopy(net)
    with torch.no_grad():
        block = other.block1
        block.conv1.weight.copy_(block.conv1.weight[order])
        for t in (block.bn1.weight, block.bn1.bias, block.bn1.running_mean, block.bn1.running_var):
            t.copy_(t[order])
        block.conv2.weight.copy_(block.conv2.weight[:, order])
    a = slimilar.prune(net, IMAGE, threshold=0.2)
    b = slimilar.prune(other, IMAGE, threshold=0.2)
    assert {int(order[i]) for i in b.kept["block1.conv1"]} == set(a.kept["block1.conv1"])
    assert torch.allclose(a.model(IMAGE), b.model(IMAGE), atol=1e-5)


def test_dead_channels_change_nothing(net: nn.Module) -> None:
    dead = [2, 5, 11]
    with torch.no_grad():
        net.block1.bn1.weight[dead] = 0
        net.block1.bn1.bias[dead] = 0
    small = slimilar.remove_channels(net, IMAGE, {"block1.conv1": dead})
    assert small.block1.conv1.out_channels == 17
    assert torch.allclose(small(IMAGE), net(IMAGE), atol=1e-6)


def test_the_new_module_is_an_ordinary_one(net: nn.Module) -> None:
    net.block1.conv1.weight.requires_grad_(False)
    seen: list[int] = []
    net.block2.register_forward_hook(lambda *_: seen.append(1))
    result = slimilar.prune(net, IMAGE, flops=0.6)
    small = result.model
    assert type(small) is Net
    assert not small.block1.conv1.weight.requires_grad
    assert small.block2.conv1.weight.requires_grad
    seen.clear()
    small(IMAGE)
    assert seen == [1]
    twin = copy.deepcopy(small)
    twin.load_state_dict(small.state_dict())
    assert torch.equal(twin(IMAGE), small(IMAGE))
    small.train()
    small(IMAGE).square().sum().backward()
    assert small.block2.conv1.weight.grad.shape == small.block2.conv1.weight.shape
    exported = torch.export.export(twin.eval(), (IMAGE,)).module()
    assert torch.allclose(exported(IMAGE), twin(IMAGE), atol=1e-5)
    assert "FLOPs" in result.summary()
    assert "block1.conv1" in result.summary()


def test_memory_format_dtype_and_ties_are_kept() -> None:
    net = trained(models.build("resnet20", width=0.5)).to(memory_format=torch.channels_last).double()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    small = slimilar.prune(net, x, flops=0.6).model
    weight = small.get_parameter("layer1.0.conv1.weight")
    assert weight.dtype is torch.float64
    assert weight.is_contiguous(memory_format=torch.channels_last)

    tied = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Conv2d(8, 2, 1),
    )
    tied[3].weight = tied[1].weight
    less = slimilar.remove_channels(tied, IMAGE, {"0": [1, 6]})
    assert less[3].weight is less[1].weight
    assert less[1].weight.shape == (6, 6, 3, 3)


def test_pruned_models_are_pruned_again_and_rebuilt_from_a_fresh_one(net: nn.Module) -> None:
    from slimilar.surgery.rewrite import operate

    once = slimilar.prune(net, IMAGE, flops=0.8)
    twice = slimilar.prune(once.model, IMAGE, flops=0.8)
    fresh = operate(Net(), twice.surgery)
    fresh.load_state_dict(twice.model.state_dict())
    assert torch.equal(fresh.eval()(IMAGE), twice.model(IMAGE))


def test_selection_reads_first_and_normalises_only_what_it_chose() -> None:
    net = trained(models.PreResNet(20))
    x = torch.randn(1, 3, 32, 32)
    result = slimilar.prune(net, x, flops=0.5, residual="select")
    chosen = result.model.get_submodule("layer1.1.bn1")
    assert chosen.num_features == len(chosen.index) < 64
    assert slimilar.count(result.model, x).flops == result.cut.flops
    assert result.error is not None
    assert result.error < 1e-5


# --- bad input --------------------------------------------------------------------------------------------------


def one_sentence(error: pytest.ExceptionInfo[slimilar.SlimilarError]) -> str:
    text = str(error.value)
    assert len(text) > 20
    assert "\n" not in text
    assert isinstance(error.value, slimilar.SlimilarError)
    return text


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda n: slimilar.analyze(n), InvalidInput, "example input must be given"),
        (lambda n: slimilar.analyze("resnet50", IMAGE), InvalidInput, "torch.nn.Module, got str"),
        (lambda n: slimilar.analyze(n, torch.zeros(1, 7, 8, 8)), TraceError, r"\(1, 7, 8, 8\).*RuntimeError"),
        (lambda n: slimilar.prune(n, IMAGE, threshold=7), InvalidInput, "from 0 to 1, got 7"),
        (lambda n: slimilar.prune(n, IMAGE, threshold=0.1, flops=0.5), InvalidInput, "got threshold and flops"),
        (lambda n: slimilar.prune(n, IMAGE), InvalidInput, "exactly one"),
        (lambda n: slimilar.prune(n, IMAGE, flops=0.001), UnreachableBudget, "at least .* smallest"),
        (lambda n: slimilar.prune(n, IMAGE, flops="lots"), InvalidInput, "share such as 0.5.*'lots'"),
        (lambda n: slimilar.prune(n, IMAGE, flops=-1), InvalidInput, "share such as 0.5"),
        (lambda n: slimilar.prune(n, IMAGE, threshold=0.1, exclude=["blok1"]), InvalidInput, "did you mean block1"),
        (lambda n: slimilar.prune(n, IMAGE, threshold=0.1, residual="outer"), InvalidInput, "residual must be"),
        (lambda n: slimilar.remove_channels(n, IMAGE, {"block1.conv": [0]}), InvalidInput, "did you mean"),
        (lambda n: slimilar.remove_channels(n, IMAGE, {"block1.conv1": [99]}), InvalidInput, "from 0 to 19, got 99"),
        (lambda n: slimilar.remove_channels(n, IMAGE, {"stem": range(12)}), InvalidInput, "at least one"),
        (lambda n: slimilar.remove_channels(n, IMAGE, {"head": [0]}), InvalidInput, "has to stay: model output"),
        (lambda n: slimilar.remove_channels(n, IMAGE, {"block1.bn1": [0]}), InvalidInput, "BatchNorm2d"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_sentence(
    net: nn.Module, call: Callable[[nn.Module], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as error:
        call(net)
    assert re.search(says, one_sentence(error)), str(error.value)


def test_nan_weights_are_named(net: nn.Module) -> None:
    with torch.no_grad():
        net.block1.conv2.weight[0, 0] = float("nan")
    with pytest.raises(InvalidInput, match=r"block1.conv2.weight"):
        slimilar.prune(net, IMAGE, threshold=0.1)


def test_infinity_is_for_buffers_that_hold_it_on_purpose(net: nn.Module) -> None:
    net.register_buffer("limit", torch.tensor([-math.inf, math.inf]))
    net.block1.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    assert slimilar.prune(net, IMAGE, threshold=0.1).error is not None
    net.block1.mask[0, 1] = math.nan
    with pytest.raises(InvalidInput, match=r"got NaN in block1.mask"):
        slimilar.analyze(net, IMAGE)


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_infinity_in_a_norm_is_refused(net: nn.Module, name: str) -> None:
    with torch.no_grad():
        getattr(net.block1.bn1, name)[0] = math.inf
    with pytest.raises(InvalidInput, match=rf"NaN or infinity in block1.bn1.{name}"):
        slimilar.analyze(net, IMAGE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(net: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="TorchScript"):
        slimilar.analyze(torch.jit.trace(net, IMAGE), IMAGE)


def test_a_wrong_rewrite_is_caught_and_named(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the surgery of one group on purpose: verification must say so and name it."""
    from slimilar.surgery import rewrite

    def broken(model: nn.Module, done: rewrite.Surgery) -> nn.Module:
        small = rewrite.operate(model, done)
        if small.block2.conv2.in_channels < 16:
            with torch.no_grad():
                small.block2.conv2.weight.copy_(small.block2.conv2.weight.flip(1))
        return small

    for module in ("pipeline.application", "reconstruction.reconstruct", "surgery.fault"):
        monkeypatch.setattr(f"slimilar.{module}.operate", broken)
    with pytest.raises(slimilar.errors.VerificationError, match=r"group block2\.conv1"):
        slimilar.prune(net, IMAGE, threshold=0.2, round_to=1)


@pytest.mark.parametrize(("count", "chosen"), [(15, "similarity"), (32, "span")])
def test_auto_leaves_span_to_those_with_images_enough(count: int, chosen: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    shown = torch.randn(count, 3, 8, 8)
    assert slimilar.prune(net.eval(), shown[:1], flops=0.6, calibration=shown).plan.criterion == chosen


def test_what_pruning_made_is_freed_without_the_garbage_collector():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    gc.collect()
    gc.disable()
    try:
        result = slimilar.prune(net, torch.zeros(1, 3, 8, 8), threshold=0.3, substitute="none")
        watched = [weakref.ref(x) for x in (net, result.model, result.plan.structure.trace)]
        del net, result
        assert [ref() for ref in watched] == [None, None, None]
    finally:
        gc.enable()


def test_the_reason_that_holds_for_most_is_told_first():
    """Of an untrained network that is what to know, whatever else stays in it."""
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())]
    net = nn.Sequential(nn.Conv2d(3, 4, 1), *layers, nn.Conv2d(4, 2, 1)).eval()
    with pytest.raises(NothingToPrune, match=r"none can \(1, 4 and 6 more: untrained batch norm"):
        slimilar.prune(net, torch.zeros(1, 3, 4, 4), flops=0.5)
