"""T5's encoder, arranged for throughput; the numbers are those of transformers' ``T5Stack``.

One matrix product makes q, k and v, one makes both halves of a gated feed-forward; the relative-position bias is
the same in every block and every call, so it is made once for the longest length seen; attention is torch's fused
kernel (T5 does not scale its scores).
Shapes: B batch, L positions, D width, H heads, E width of a head.
Source: Raffel et al. 2020, "Exploring the limits of transfer learning", 2.1, and Shazeer 2020 for gated units.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": partial(functional.relu, inplace=True),
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "silu": partial(functional.silu, inplace=True),
}


@dataclass(frozen=True, slots=True)
class T5Shape:
    """The encoder's numbers as its ``config.json`` has them."""

    vocabulary: int
    width: int
    head_width: int
    heads: int
    feed_forward: int
    layers: int
    activation: str
    gated: bool
    buckets: int
    max_distance: int
    eps: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "T5Shape":
        """Raises KeyError, OverflowError, TypeError or ValueError for a number that is missing or that
        no network has, and for an unknown activation."""
        gate, _, name = str(config.get("feed_forward_proj", "relu")).rpartition("-")
        activation = "gelu_new" if (gate, name) == ("gated", "gelu") else name
        if gate not in ("", "gated") or activation not in ACTIVATIONS:
            raise ValueError(f"feed_forward_proj {config['feed_forward_proj']!r} is not known")
        shape = cls(
            vocabulary=int(config["vocab_size"]),
            width=int(config["d_model"]),
            head_width=int(config["d_kv"]),
            heads=int(config["num_heads"]),
            feed_forward=int(config["d_ff"]),
            layers=int(config["num_layers"]),
            activation=activation,
            gated=gate == "gated",
            # Configurations older than these settings leave them out.
            buckets=int(config.get("relative_attention_num_buckets", 32)),
            max_distance=int(config.get("relative_attention_max_distance", 128)),
            eps=float(config.get("layer_norm_epsilon", 1e-6)),
        )
        if shape.layers < 0:
            raise ValueError(f"num_layers is {shape.layers}, and must be 0 or more")
        shape.check_positions()
        return shape

    def check_positions(self) -> None:
        """Raises ValueError where the buckets of relative positions are too few, or their distances too short."""
        exact = self.buckets // 2 // 2
        if exact < 1:
            raise ValueError(
                f"relative_attention_num_buckets is {self.buckets}, and half of those for keys before a query are for "
                "single distances, so there must be 4 or more (32 in every published T5)"
            )
        if self.max_distance <= exact:
            raise ValueError(
                f"relative_attention_max_distance is {self.max_distance}, but of {self.buckets} buckets the first "
                f"{exact} are for single distances and the others for farther ones, so it must be more than {exact} "
                "(128 in every published T5)"
            )

    def weights(self, layers: int) -> dict[str, tuple[int, ...]]:
        """Names, as transformers gives them, and shapes of the weights that the first ``layers`` blocks need."""
        inner, position = (
            self.heads * self.head_width,
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        )
        named: dict[str, tuple[int, ...]] = {"shared": (self.vocabulary, self.width)}
        if layers:
            named[position] = (self.buckets, self.heads)
        for number in range(layers):
            attention, feed = (f"encoder.block.{number}.layer.{part}" for part in (0, 1))
            named[f"{attention}.layer_norm"] = named[f"{feed}.layer_norm"] = (self.width,)
            for each in "qkv":
                named[f"{attention}.SelfAttention.{each}"] = (inner, self.width)
            named[f"{attention}.SelfAttention.o"] = (self.width, inner)
            for each in ("wi_0", "wi_1") if self.gated else ("wi",):
                named[f"{feed}.DenseReluDense.{each}"] = (self.feed_forward, self.width)
            named[f"{feed}.DenseReluDense.wo"] = (self.width, self.feed_forward)
        if layers == self.layers:
            named["encoder.final_layer_norm"] = (self.width,)
        return {f"{name}.weight": shape for name, shape in named.items()}


class FastT5(nn.Module):
    """The first ``layers`` blocks of an encoder, and its final norm where ``layers`` is all of them.

    ``weights`` holds at least what ``shape.weights(layers)`` lists.
    """

    def __init__(self, shape: T5Shape, weights: Mapping[str, Tensor], layers: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = _frozen(weights["shared.weight"])
        self.blocks = nn.ModuleList(_Block(shape, weights, number) for number in range(layers))
        complete = layers == shape.layers
        self.final = _frozen(weights["encoder.final_layer_norm.weight"]) if complete else None
        position = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self.position_HP = _frozen(weights[position].T) if layers else None
        self._bias_1HLL: Tensor | None = None

    def hidden(self, ids_BL: Tensor, mask_B1QK: Tensor | None = None) -> Iterator[Tensor]:
        """Hidden states 0 (embeddings) … ``layers``, each (B, L, D).

        The mask (B, 1, L or 1, L) is added to the scores: 0 where a query sees a key, the lowest finite number
        elsewhere; None lets every position see every other.
        """
        x_BLD = functional.embedding(ids_BL, self.embedding)
        yield x_BLD
        if not len(self.blocks):
            return
        scores_BHLL = self.bias(ids_BL.shape[1])
        if mask_B1QK is not None:
            scores_BHLL = scores_BHLL + mask_B1QK
        for number, block in enumerate(self.blocks, 1):
            x_BLD = block(x_BLD, scores_BHLL)
            if self.final is not None and number == len(self.blocks):
                x_BLD = _norm(x_BLD, self.final, self.shape.eps)
            yield x_BLD

    def bias(self, length: int) -> Tensor:
        """(1, H, L, L): what each head adds to a score for the distance from query to key."""
        assert self.position_HP is not None, "without blocks there is no attention"
        known = self._bias_1HLL
        if known is None or known.shape[-1] < length or known.device != self.position_HP.device:
            buckets_LL = relative_buckets(length, self.shape.buckets, self.shape.max_distance)
            known = self.position_HP[:, buckets_LL.to(self.position_HP.device)][None].contiguous()
            self._bias_1HLL = known
        return known[:, :, :length, :length]


class _Block(nn.Module):
    """Self-attention, then feed-forward, each on normed input and added to its input."""

    def __init__(self, shape: T5Shape, weights: Mapping[str, Tensor], number: int) -> None:
        super().__init__()

        def take(part: int, *names: str) -> nn.Parameter:
            prefix = f"encoder.block.{number}.layer.{part}"
            return _frozen(torch.cat([weights[f"{prefix}.{name}.weight"] for name in names]))

        self.shape = shape
        self.norm_attention = take(0, "layer_norm")
        self.qkv = take(0, *(f"SelfAttention.{each}" for each in "qkv"))
        self.out = take(0, "SelfAttention.o")
        self.norm_feed = take(1, "layer_norm")
        self.up = take(
            1, *(f"DenseReluDense.{each}" for each in (("wi_0", "wi_1") if shape.gated else ("wi",)))
        )
        self.down = take(1, "DenseReluDense.wo")
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x_BLD: Tensor, scores_BHLL: Tensor) -> Tensor:
        batch, length, _ = x_BLD.shape
        qkv = functional.linear(_norm(x_BLD, self.norm_attention, self.shape.eps), self.qkv)
        q_BHLE, k_BHLE, v_BHLE = (
            qkv.view(batch, length, 3, self.shape.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        )
        seen_BHLE = functional.scaled_dot_product_attention(
            q_BHLE, k_BHLE, v_BHLE, attn_mask=scores_BHLL, scale=1.0
        )
        x_BLD = x_BLD + functional.linear(seen_BHLE.transpose(1, 2).flatten(2), self.out)
        up = functional.linear(_norm(x_BLD, self.norm_feed, self.shape.eps), self.up)
        if self.shape.gated:
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
