"""nn.MultiheadAttention with fewer heads than it was made with.

Torch's own takes the width of a head from the width of its input, so it cannot lose heads. This one holds the width of
a head, and otherwise runs the same operators, in the same order. Where torch's runs others (another version, say),
probing notices, and all heads stay.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """Attention whose heads together are narrower than its input and its output."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what nn.MultiheadAttention returns: outputs, and weights if they are wanted."""
        batched = query.dim() == 3
        padding = _as_numbers(key_padding_mask, query)
        mask = _as_numbers(attn_mask, query)
        if is_causal and mask is None:
            raise RuntimeError("is_causal must come with an attn_mask, got None")
        if is_causal and padding is None and not need_weights:
            mask = None
        is_causal = is_causal and mask is None
        query, key, value = self._length_first(query, key, value, batched)
        if padding is not None and not batched:
            padding = padding.unsqueeze(0)
        q, k, v = self._projected(query, key, value)
        if mask is not None and mask.dim() == 2:
            mask = mask.unsqueeze(0)
        out, weights = self._attended(q, k, v, mask, padding, is_causal, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            return out.squeeze(1), None if weights is None else weights.squeeze(0)
        return out.transpose(1, 0) if self.batch_first else out, weights

    def _length_first(
        self, query: Tensor, key: Tensor, value: Tensor, batched: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs as (length, batch, channels); the same tensor stays one tensor."""

        def turned(x: Tensor) -> Tensor:
            return x.transpose(1, 0) if self.batch_first else x

        turn = turned if batched else _with_batch
        if key is value and query is key:
            query = key = value = turn(query)
        elif key is value:
            query, key = turn(query), turn(key)
            value = key
        else:
            query, key, value = turn(query), turn(key), turn(value)
        return query, key, value

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values of all heads side by side."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        inner = self.num_heads * self.head_dim
        if weight is not None and query is key and key is value:
            return tuple(_unpacked(F.linear(query, weight, bias), 3, inner))
        if weight is not None and key is value:
            w_q, w_kv = weight.split([inner, 2 * inner])
            b_q, b_kv = (None, None) if bias is None else bias.split([inner, 2 * inner])
            q = F.linear(query, w_q, b_q)
            return q, *_unpacked(F.linear(key, w_kv, b_kv), 2, inner)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if weight is None else weight.chunk(3)
        given = zip((query, key, value), weights, biases, strict=True)
        return tuple(F.linear(x, w, b) for x, w, b in given)

    def _attended(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the projected outputs of all heads as (length, batch, channels), and weights if they are wanted."""
        (length, batch, _), source, heads, width = q.shape, k.shape[0], self.num_heads, self.head_dim
        q, k, v = (x.view(x.shape[0], batch * heads, width).transpose(0, 1) for x in (q, k, v))
        if padding is not None:
            spread = padding.view(batch, 1, 1, source).expand(-1, heads, -1, -1)
            spread = spread.reshape(batch * heads, 1, source)
            mask = spread if mask is None else mask + spread
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scaled = q * math.sqrt(1.0 / float(width))
            turned = k.transpose(-2, -1)
            scores = torch.bmm(scaled, turned) if mask is None else torch.baddbmm(mask, scaled, turned)
            weights = F.dropout(scores.softmax(-1), dropout) if dropout else scores.softmax(-1)
            joined = torch.bmm(weights, v).transpose(0, 1).reshape(length * batch, heads * width)
        else:
            if mask is not None:
                alike = mask.size(0) == 1 and mask.dim() == 3
                mask = mask.unsqueeze(0) if alike else mask.view(batch, heads, -1, source)
            q, k, v = (x.view(batch, heads, x.shape[1], width) for x in (q, k, v))
            found = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
            joined = found.permute(2, 0, 1, 3).reshape(batch * length, heads * width)
        out = F.linear(joined, self.out_proj.weight, self.out_proj.bias)
        out = out.view(length, batch, out.size(1))
        return out, None if weights is None else weights.view(batch, heads, length, source)


def narrow(module: nn.Module) -> None:
    """Let attention whose weights have lost heads or outputs run with those that are left, in place."""
    if not isinstance(module, nn.MultiheadAttention):
        return
    outputs, inner = module.out_proj.weight.shape
    if (outputs, inner) == (module.embed_dim, module.num_heads * module.head_dim):
        return
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("attention with a key of its own, or with one of zeros, keeps its heads")
    module.__class__ = NarrowMultiheadAttention
    if inner % module.head_dim:  # a trial in which heads become narrower: the scale shows that they must not
        module.head_dim = inner // module.num_heads
    else:
        module.num_heads = inner // module.head_dim
    module._qkv_same_embed_dim = False  # else torch's encoder layers run one operator for all of themselves


def _with_batch(x: Tensor) -> Tensor:
    return x.unsqueeze(1)


def _unpacked(x: Tensor, count: int, inner: int) -> list[Tensor]:
    """Return the parts of a product that stand side by side, each in memory of its own."""
    apart = x.unflatten(-1, (count, inner)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    return [apart[i] for i in range(count)]


def _as_numbers(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask as numbers to be added: minus infinity where it is true."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
