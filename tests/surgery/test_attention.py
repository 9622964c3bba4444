"""Attention: whole heads leave, or, where the code scales by a number of its own, channels of all heads alike."""

from __future__ import annotations

from collections.abc import Callable

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


def test_heads_that_torch_ties_to_the_embedding_stay() -> None:
    """nn.MultiheadAttention takes the width of a head from the width of its input."""
    net = nn.TransformerEncoderLayer(12, 4, 16, batch_first=True).eval()
    grouping = find_structure(net, X).grouping
    assert [g.name for g in grouping.groups] == ["linear1"]
    assert any(f.name == "self_attn" for f in grouping.frozen)


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
