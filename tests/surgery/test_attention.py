"""Attention: whole heads leave, or, where the code scales by a number of its own, channels of all heads alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import slimilar
from helpers.exact import check_exact
from slimilar.surgery.probe import find_structure
from slimilar.utils.torchvision_compat import import_torchvision

X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))


class Fused(nn.Module):
    """Queries, keys and values from one layer."""

    def __init__(self, own_scale: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.own_scale = 4, 6, own_scale
        self.qkv, self.proj = nn.Linear(12, 72), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        if self.own_scale:
            y = (q * 0.4 @ k.transpose(-2, -1)).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(y.transpose(1, 2).reshape(b, n, -1))


class Apart(nn.Module):
    """A layer for each, and a bias for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(12, 24) for _ in range(3))
        self.proj, self.bias, self.heads = nn.Linear(24, 12), nn.Parameter(torch.randn(4, 5, 5)), 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.proj(F.scaled_dot_product_attention(q, k, v, self.bias).transpose(1, 2).flatten(2))


class Chunks(nn.Module):
    """One layer, cut into three; the width of a head is written in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(12, 72), nn.Linear(24, 12), 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, 6)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


HEADS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "fused": (Fused, "qkv"), "apart, with a bias": (Apart, "q"), "chunks": (Chunks, "qkv"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_whole_heads_leave_exactly(name: str) -> None:
    torch.manual_seed(0)
    make, layer = HEADS[name]
    net = make().double().eval()
    group = next(g for g in find_structure(net, X.double()).grouping.groups if g.name == layer)
    assert group.width == 4
    assert check_exact(net, X.double(), {layer}) < 1e-9


def test_a_head_is_gone_with_all_its_weights() -> None:
    """By hand: a head that the projection does not read does not matter."""
    torch.manual_seed(0)
    net = Fused().eval()
    small = slimilar.remove_channels(net, X, {"qkv": [6]})  # a channel takes its head along
    assert (small.num_heads, small.head_dim) == (3, 6)
    assert (small.qkv.out_features, small.proj.in_features) == (54, 18)
    with torch.no_grad():
        net.proj.weight[:, 6:12] = 0
    torch.testing.assert_close(small(X), net(X))


def test_where_the_scale_is_fixed_channels_of_all_heads_leave() -> None:
    torch.manual_seed(0)
    net = Fused(own_scale=True).double().eval()
    assert [g.width for g in find_structure(net, X.double()).grouping.groups] == [6]
    assert check_exact(net, X.double(), {"qkv"}) < 1e-9


def test_heads_of_timms_attention_leave() -> None:
    import_torchvision()
    layers = pytest.importorskip("timm.layers")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.LayerNorm(12), layers.Attention(12, num_heads=3, attn_head_dim=8, qkv_bias=True)
    ).eval()
    result = slimilar.prune(net, X, ratio=0.4, criterion="magnitude-l2")
    assert result.model[1].num_heads == 2
    assert result.error is not None
    assert result.error < 1e-4


class Encoder(nn.Module):
    """A layer of torch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(24, 4, 16, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x))


class Cross(nn.Module):
    """Attention to another input of other length and width."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 4, **options)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.head(self.attention(x, other, other, need_weights=False)[0])


class Attended(nn.Module):
    """Attention without a stream around it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(12, 2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])


TOKENS = torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(1))
OTHERS = torch.randn(7, 2, 24, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_of_torchs_attention_leave(batch: int, tmp_path: Path) -> None:
    """By hand: a head that the projection does not read does not matter, whatever the masks are."""
    torch.manual_seed(0)
    net, x = Encoder().eval(), TOKENS.repeat(batch, 1, 1)
    group = find_structure(net, x).grouping.groups[0]
    assert (group.name, group.width) == ("layer.self_attn", 4)
    small = slimilar.remove_channels(net, x, {"layer.self_attn": [7, 13]})  # channels take their heads along
    attention = small.layer.self_attn
    assert isinstance(attention, nn.MultiheadAttention)
    assert (attention.num_heads, attention.head_dim, attention.embed_dim) == (2, 6, 24)
    assert attention.in_proj_weight.shape == (36, 24)
    with torch.no_grad():
        net.layer.self_attn.out_proj.weight[:, 6:18] = 0
        torch.testing.assert_close(small(x), net(x))
        masks = {"attn_mask": torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)}
        masks["key_padding_mask"] = torch.tensor([[False, False, False, True, True]]).expand(batch, -1)
        for options in (
            {},
            masks,
            {"attn_mask": masks["attn_mask"], "is_causal": True, "need_weights": False},
        ):
            found = attention(x, x, x, **options)[0]
            torch.testing.assert_close(found, net.layer.self_attn(x, x, x, **options)[0])
        torch.testing.assert_close(attention(x[0], x[0], x[0])[0], net.layer.self_attn(x[0], x[0], x[0])[0])


@pytest.mark.parametrize("options", [{}, {"kdim": 20, "vdim": 20}, {"bias": False}], ids=str)
def test_heads_that_attend_to_another_input_leave(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    net, other = Cross(**options).double().eval(), OTHERS[..., : options.get("kdim", 24)].double()
    weight = "q_proj_weight" if "kdim" in options else "in_proj_weight"
    names = {f"attention.{weight}", "attention.out_proj.weight"}
    assert check_exact(net, (OTHERS[:5].double(), other), names) < 1e-9


def test_heads_leave_where_nobody_reads_their_averaged_weights() -> None:
    torch.manual_seed(0)
    net = Attended().double().eval()
    assert check_exact(net, X.double(), {"attention.in_proj_weight"}) < 1e-9
    whole = find_structure(
        nn.MultiheadAttention(12, 4), (X.transpose(0, 1),) * 3
    ).grouping  # returns them, too
    assert not whole.groups


def test_attention_that_loses_outputs_runs_as_torch_runs_it_for_inference() -> None:
    """Torch runs attention as one operator where no gradient is asked for; that one takes no other width."""
    torch.manual_seed(0)
    net = Attended().eval()
    small = slimilar.remove_channels(net, X, {"attention.out_proj": [0, 5]})
    with torch.no_grad():
        net.head.weight[:, [0, 5]] = 0
        torch.testing.assert_close(small(X), net(X))


def test_torchs_attention_is_reconstructed_saved_and_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, images = Encoder().eval(), torch.randn(32, 5, 24)
    result = slimilar.prune(net, TOKENS, ratio=0.4, criterion="magnitude-l2", calibration=images)
    assert result.error is not None
    assert result.error < 1e-4
    assert result.model.layer.self_attn.num_heads == 3
    file = slimilar.save(result, tmp_path / "small.safetensors")
    loaded = slimilar.load(file, Encoder()).eval()
    torch.testing.assert_close(loaded(TOKENS), result.model.eval()(TOKENS))
    loaded.train()(TOKENS).sum().backward()
    assert loaded.layer.self_attn.in_proj_weight.grad is not None


def test_attention_with_a_key_of_its_own_keeps_its_heads() -> None:
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        net = nn.MultiheadAttention(12, 4, **options).eval()
        grouping = find_structure(net, (X.transpose(0, 1),) * 3).grouping
        assert not grouping.groups


class AsManyHeadsAsChannels(nn.Module):
    """Four heads of four channels: a number that a module holds equals another one by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.val_dim, self.scale = 4, 4, 8, 0.5
        self.qkv, self.proj = nn.Conv2d(6, 64, 1), nn.Conv2d(32, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        sizes = [self.key_dim, self.key_dim, self.val_dim]
        q, k, v = self.qkv(x).view(b, self.num_heads, -1, h * w).split(sizes, dim=2)
        attention = (q.transpose(-2, -1) @ k * self.scale).softmax(-1)
        return self.proj((v @ attention.transpose(-2, -1)).view(b, -1, h, w))


def test_a_number_that_equals_a_size_by_chance_stays() -> None:
    torch.manual_seed(0)
    net, image = AsManyHeadsAsChannels().double().eval(), torch.randn(2, 6, 3, 3, dtype=torch.float64)
    groups = [g for g in find_structure(net, image).grouping.groups if g.name.startswith("qkv")]
    assert (
        sum(g.width for g in groups) == 12
    )  # 4 pairs of a query and a key, and 8 values, of all heads alike
    small = slimilar.remove_channels(net, image, {"qkv": [1]})
    assert (small.num_heads, small.key_dim, small.val_dim) == (4, 3, 8)
    assert check_exact(net, image, {"qkv"}) < 1e-9


class Differential(nn.Module):
    """Two maps of attention for each head, whose values are twice as wide, and an MLP in the same layer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.in_split = 2, 6, [20, 24, 24, 24]
        self.in_proj, self.attn_out, self.mlp_out = nn.Linear(12, 92), nn.Linear(24, 12), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        mlp, q, k, v = self.in_proj(x).split(self.in_split, -1)
        q, k = (t.reshape(b, n, 2 * self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k))
        v = v.reshape(b, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)
        one, other = (q @ k.transpose(-2, -1) * 0.4).softmax(-1).view(b, self.num_heads, 2, n, n).unbind(2)
        y = ((one - 0.3 * other) @ v).transpose(1, 2).reshape(b, n, 24)
        return x + self.attn_out(y) + self.mlp_out(mlp.relu())


def test_attention_that_stays_does_not_keep_what_is_computed_beside_it() -> None:
    torch.manual_seed(0)
    net = Differential().double().eval()
    grouping = find_structure(net, X.double()).grouping
    assert sum(g.width - len(g.fixed) for g in grouping.groups if g.name.startswith("in_proj")) == 19
    assert check_exact(net, X.double(), {"in_proj"}) < 1e-9
