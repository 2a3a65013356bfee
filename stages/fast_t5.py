"""T5's encoder, arranged for throughput; the numbers are those of transformers' ``T5Stack``.

One matrix product makes q, k and v, one makes both halves of a gated feed-forward; the relative-position bias is
the same in every block and every call, so it is made once for the longest length seen; attention is torch's fused
kernel (T5 does not scale its scores).
Shapes: B batch, L positions, D width, H heads, E width of a head.
Source: Raffel et al. 2020, "Exploring the limits of transfer learning", 2.1, and Shazeer 2020 for gated units.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.t5.modeling_t5 import T5Stack

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Activation] = {
    "relu": partial(functional.relu, inplace=True),
    "gelu_new": partial(functional.gelu, approximate="tanh"),
}


class FastT5(nn.Module):
    """The first ``layers`` blocks of ``stack``, and its final norm where ``layers`` is all of them."""

    def __init__(self, stack: T5Stack, layers: int) -> None:
        super().__init__()
        config = stack.config
        self.embedding = _frozen(stack.embed_tokens.weight)
        self.blocks = nn.ModuleList(_Block(block) for block in list(stack.block)[:layers])
        complete = layers == len(stack.block)
        self.final = _frozen(stack.final_layer_norm.weight) if complete else None
        self.eps = float(config.layer_norm_epsilon)
        first: Any = stack.block[0]
        attention = first.layer[0].SelfAttention
        self.position_HP = _frozen(attention.relative_attention_bias.weight.T)
        self.max_distance = int(config.relative_attention_max_distance)
        self._bias_1HLL: Tensor | None = None

    def hidden(self, ids_BL: Tensor, mask_B1QK: Tensor | None = None) -> Iterator[Tensor]:
        """Hidden states 0 (embeddings) … ``layers``, each (B, L, D).

        The mask (B, 1, L or 1, L) is added to the scores: 0 where a query sees a key, the lowest finite number
        elsewhere; None lets every position see every other.
        """
        x_BLD = functional.embedding(ids_BL, self.embedding)
        if self.final is None or len(self.blocks):
            yield x_BLD
        scores_BHLL = self.bias(ids_BL.shape[1])
        if mask_B1QK is not None:
            scores_BHLL = scores_BHLL + mask_B1QK
        for number, block in enumerate(self.blocks, 1):
            x_BLD = block(x_BLD, scores_BHLL, self.eps)
            if self.final is not None and number == len(self.blocks):
                x_BLD = _norm(x_BLD, self.final, self.eps)
            yield x_BLD

    def bias(self, length: int) -> Tensor:
        """(1, H, L, L): what each head adds to a score for the distance from query to key."""
        known = self._bias_1HLL
        if known is None or known.shape[-1] < length or known.device != self.position_HP.device:
            buckets_LL = relative_buckets(length, self.position_HP.shape[1], self.max_distance)
            known = self.position_HP[:, buckets_LL.to(self.position_HP.device)][None].contiguous()
            self._bias_1HLL = known
        return known[:, :, :length, :length]


class _Block(nn.Module):
    """Self-attention, then feed-forward, each on normed input and added to its input."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        attention, feed = block.layer[0], block.layer[1]
        inner, dense = attention.SelfAttention, feed.DenseReluDense
        self.heads = int(inner.n_heads)
        self.norm_attention = _frozen(attention.layer_norm.weight)
        self.qkv = _frozen(torch.cat([inner.q.weight, inner.k.weight, inner.v.weight]))
        self.out = _frozen(inner.o.weight)
        self.norm_feed = _frozen(feed.layer_norm.weight)
        self.gated = hasattr(dense, "wi_0")
        self.up = _frozen(
            torch.cat([dense.wi_0.weight, dense.wi_1.weight]) if self.gated else dense.wi.weight
        )
        self.down = _frozen(dense.wo.weight)
        name = inner.config.dense_act_fn
        self.activation: Activation = _ACTIVATIONS.get(name) or ACT2FN[name]

    def forward(self, x_BLD: Tensor, scores_BHLL: Tensor, eps: float) -> Tensor:
        batch, length, _ = x_BLD.shape
        qkv = functional.linear(_norm(x_BLD, self.norm_attention, eps), self.qkv)
        q_BHLE, k_BHLE, v_BHLE = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        seen_BHLE = functional.scaled_dot_product_attention(
            q_BHLE, k_BHLE, v_BHLE, attn_mask=scores_BHLL, scale=1.0
        )
        x_BLD = x_BLD + functional.linear(seen_BHLE.transpose(1, 2).flatten(2), self.out)
        up = functional.linear(_norm(x_BLD, self.norm_feed, eps), self.up)
        if self.gated:
            gate, value = up.chunk(2, dim=-1)
            up = self.activation(gate) * value
        else:
            up = self.activation(up)
        return x_BLD + functional.linear(up, self.down)


def relative_buckets(length: int, buckets: int, max_distance: int) -> Tensor:
    """(L, L) int64: the bucket of key position − query position.

    Half of the buckets are for keys after the query. Of each half, one half is for single distances, the other
    grows with the logarithm up to ``max_distance``; everything farther shares the last one.
    """
    position_L = torch.arange(length)
    offset_LL = position_L[None, :] - position_L[:, None]
    half = buckets // 2
    exact = half // 2
    distance_LL = offset_LL.abs()
    far_LL = torch.log(distance_LL.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far_LL = (exact + (far_LL * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(distance_LL < exact, distance_LL, far_LL) + half * (offset_LL > 0)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def _frozen(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone(), requires_grad=False)
