"""Residual branches that lose their last channel: the block returns its input and a constant, and computes no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.paths import DOCS
from helpers.small_networks import trained
from slimilar.deploy.onnx import export_onnx
from slimilar.errors import InvalidInput
from slimilar.models import PreResNet, ResNet
from slimilar.surgery.branches import with_branches
from slimilar.surgery.probe import find_structure
from slimilar.surgery.removed_branches import ConstantOutput, EmptyOutput

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Bottleneck(nn.Module):
    """An inverted bottleneck: two groups are one, because the middle is depthwise; and layers outside of it."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 2, 1)
        self.up, self.norm1 = nn.Conv2d(6, 12, 1, bias=bias), nn.BatchNorm2d(12)
        self.middle, self.norm2 = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12)
        self.down, self.norm3 = nn.Conv2d(12, 6, 1, bias=bias), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = nn.functional.hardswish(self.norm2(self.middle(self.norm1(self.up(x)).relu())))
        y = self.norm3(self.down(y))
        y += x
        return self.head(y)


def bottleneck(bias: bool = False) -> Bottleneck:
    torch.manual_seed(0)
    net = Bottleneck(bias)
    trained(net)
    return net


def branches(model: nn.Module, mode: str = "inner") -> set[str]:
    structure = with_branches(model, find_structure(model, X, mode))
    return {structure.grouping.groups[g].name for g in structure.branches}


@pytest.mark.parametrize("bias", [False, True])
def test_the_block_is_its_input_and_a_constant(bias: bool) -> None:
    net = bottleneck(bias)
    small = slimilar.remove_channels(net, X, {"up": range(12)})
    with torch.no_grad():  # by hand: the branch reads nothing but its own bias
        constant = net.norm3((net.down.bias if bias else torch.zeros(6)).view(1, 6, 1, 1))
        expected = net.head(net.stem(X) + constant)
    torch.testing.assert_close(small(X), expected)
    assert isinstance(small.up, EmptyOutput)
    assert isinstance(small.middle, EmptyOutput)
    assert isinstance(small.down, ConstantOutput)
    assert all(isinstance(norm, nn.Identity) for norm in (small.norm1, small.norm2, small.norm3))
    assert {n for n, _ in small.named_parameters()} == {
        "stem.weight", "stem.bias", "head.weight", "head.bias", "down.bias",
    }  # fmt: skip
    assert isinstance(net.up, nn.Conv2d)


def test_the_constant_can_be_trained() -> None:
    small = slimilar.remove_channels(bottleneck(), X, {"up": range(12)})
    small.train()(X).sum().backward()
    assert small.down.bias.grad.abs().sum() > 0


def test_all_blocks_of_residual_networks_can_go() -> None:
    post = trained(ResNet(20, width=0.25, shortcut="conv"))
    assert len(branches(post)) == 9
    before = trained(PreResNet(20, width=0.25))
    assert branches(before) == {
        g.name for g in find_structure(before, X).grouping.groups if "conv2" in g.name
    }


def test_layers_in_front_that_nothing_else_reads_go_too() -> None:
    net = trained(PreResNet(11, width=0.25))
    small = slimilar.remove_channels(net, X, {"layer2.0.conv2": range(net.layer2[0].conv2.out_channels)})
    block = small.layer2[0]
    assert isinstance(block.conv1, EmptyOutput)
    assert isinstance(block.conv2, EmptyOutput)
    assert isinstance(block.conv3, ConstantOutput)
    assert isinstance(block.bn1, nn.BatchNorm2d)  # it reads the stream
    plan = slimilar.analyze(net, X, criterion="magnitude-l2", min_channels=0)
    assert set(plan.at(ratio=1.0).widths.values()) <= {0, 1}
    assert plan.at(ratio=1.0).widths["layer2.0.conv1"] == 0


def test_excluded_layers_stay_when_the_branch_goes() -> None:
    net = trained(PreResNet(11, width=0.25))
    plan = slimilar.analyze(net, X, criterion="magnitude-l2", min_channels=0, exclude=["layer2.0.conv1"])
    small = slimilar.apply(net, X, plan, plan.at(ratio=1.0), reconstruction="none").model
    assert isinstance(small.layer2[0].conv1, nn.Conv2d)
    assert isinstance(small.layer2[0].conv2, EmptyOutput)


def test_what_nothing_is_added_to_keeps_a_channel() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    assert branches(net) == set()
    with pytest.raises(InvalidInput, match="at least one channel of 0 must stay"):
        slimilar.remove_channels(net, X, {"0": range(8)})
    plan = slimilar.analyze(net, X, criterion="magnitude-l2", min_channels=0)
    assert plan.at(ratio=1.0).widths == {"0": 1}


def test_the_stream_itself_keeps_a_channel() -> None:
    assert "stem" not in branches(bottleneck(), "joint")


class Excited(Bottleneck):
    """The same with squeeze and excitation, whose layers go with the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm2(self.middle(self.norm1(self.up(x)).relu())).relu()
        y = y * self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)).relu()).sigmoid()
        return self.head(x + self.norm3(self.down(y)))


def test_squeeze_and_excitation_goes_with_its_branch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Excited()
    trained(net)
    small = slimilar.remove_channels(net, X, {"up": range(12)})
    with torch.no_grad():
        expected = net.head(net.stem(X) + net.norm3(torch.zeros(1, 6, 1, 1)))
    torch.testing.assert_close(small(X), expected)
    assert {n for n, _ in small.named_parameters()} == {
        "stem.weight", "stem.bias", "head.weight", "head.bias", "down.bias",
    }  # fmt: skip
    file = slimilar.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(slimilar.load(file, Excited())(X), small(X))


@pytest.mark.parametrize("method", ["none", "mean", "auto"])
def test_the_plan_chooses_branches_with_min_channels_0(method: str) -> None:
    net = bottleneck()
    one = slimilar.prune(net, X, ratio=1.0, criterion="magnitude-l2", reconstruction=method)
    assert one.cut.widths == {"up": 1}
    none = slimilar.prune(net, X, ratio=1.0, criterion="magnitude-l2", reconstruction=method, min_channels=0)
    assert none.cut.widths == {"up": 0}
    assert none.error is not None
    assert none.error < 1e-5
    assert none.cut.cost.flops < one.cut.cost.flops
    assert none.cut.cost.flops == slimilar.count(none.model, X).flops


def test_with_images_the_constant_takes_in_the_mean_of_what_left() -> None:
    net = bottleneck()
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    errors = []
    for method, calibration in (("none", None), ("auto", images)):
        small = slimilar.prune(
            net,
            X,
            ratio=1.0,
            criterion="magnitude-l2",
            min_channels=0,
            reconstruction=method,
            calibration=calibration,
        ).model
        with torch.no_grad():
            errors.append(float((small(images) - net(images)).square().mean()))
    assert errors[1] < errors[0]


def test_saved_loaded_and_pruned_again(tmp_path: Path) -> None:
    small = slimilar.remove_channels(bottleneck(), X, {"up": range(12)})
    again = slimilar.remove_channels(small, X, {"stem": [0, 3]})
    assert again.down.bias.shape == (4,)
    for model in (small, again):
        file = slimilar.save(model, tmp_path / "small.safetensors")
        torch.testing.assert_close(slimilar.load(file, Bottleneck())(X), model(X))


def test_exported_to_onnx_without_the_branch(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    small = slimilar.remove_channels(bottleneck(), X, {"up": range(12)})
    exported = export_onnx(small, tmp_path / "small.onnx", X)
    graph = onnx.load(exported.path).graph
    assert sum(node.op_type == "Conv" for node in graph.node) == 2


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.Conv2d(3, 4, (3, 5), dilation=2, padding="same"),
        nn.Conv1d(3, 4, 3),
        nn.Linear(3, 4),
    ],
)
def test_shapes_are_those_of_the_layer(layer: nn.Module) -> None:
    x = (
        torch.zeros(2, 5, 3)
        if isinstance(layer, nn.Linear)
        else torch.zeros(2, 3, *(9,) * (layer.weight.ndim - 2))
    )
    shape = layer(x).shape
    assert ConstantOutput(layer)(x).shape == shape
    assert EmptyOutput(layer)(x).numel() == 0
    assert EmptyOutput(layer)(x).shape[-1] == (0 if isinstance(layer, nn.Linear) else shape[-1])


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOCS / "prunable.md").read_text(encoding="utf-8"), re.DOTALL
    )
    exec(compile(code, "prunable.md", "exec"), {})
    assert ": 0" in capsys.readouterr().out
