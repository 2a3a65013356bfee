"""The parts of the trunk: RMSNorm, rotary attention, SwiGLU, number embedder, block (paper, appendix).

Shapes: B batch, S sequence (prefix and text), H hidden, N heads, W head width.
Dropout draws from torch's global generator; whoever trains with dropout seeds it (see objective.py).
"""

import math
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

EPSILON = 1e-6
SINUSOIDS = 256
ROTARY_BASE = 10000.0


class Linear(nn.Linear):
    """nn.Linear that starts at zero: `initialise` or a checkpoint fills it, never the global generator."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            nn.init.zeros_(self.bias)


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last axis, in the weight's dtype; the result has the dtype of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        return F.rms_norm(wide, self.weight.shape, self.weight, EPSILON).to(x.dtype)


class Rotation(NamedTuple):
    """Cosines and sines (S, W) of every position's angle, each angle repeated for its pair."""

    cos_SW: Tensor
    sin_SW: Tensor


def rotary_tables(length: int, head_width: int, *, prefix: int = 0, trained: int | None = None) -> Rotation:
    """Tables in float64. Prefix positions do not turn; text position i turns by i, or by i·trained/length
    at a length other than the trained one."""
    scale = 1.0 if trained is None else trained / length
    pairs = torch.arange(0, head_width, 2, dtype=torch.float64)
    speed = ROTARY_BASE ** (-pairs / head_width)
    position = torch.arange(length, dtype=torch.float64) * scale
    angle = torch.outer(position, speed).repeat_interleave(2, dim=-1)
    angle = torch.cat([torch.zeros(prefix, head_width, dtype=torch.float64), angle])
    return Rotation(angle.cos(), angle.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the interleaved pairs (2i, 2i+1) of the last axis, in the tables' dtype. x: (…, S, W)."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    return (x * rotation.cos_SW + turned * rotation.sin_SW).to(x.dtype)


def sinusoid(s_B: Tensor, features: int = SINUSOIDS) -> Tensor:
    """[cos, sin] of s·10000^(−i/half), half = features // 2; an odd count ends in a zero.

    (B,) → (B, features).
    """
    half = features // 2
    exponent = torch.arange(half, device=s_B.device, dtype=s_B.dtype) / half
    angle = s_B[:, None] * torch.exp(-math.log(ROTARY_BASE) * exponent)[None]
    waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
    return F.pad(waves, (0, features % 2))


class NumberEmbedder(nn.Module):
    """A scalar (time or guidance) as a hidden vector: sinusoids, Linear, SiLU, Linear."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = Linear(SINUSOIDS, hidden)
        self.second = Linear(hidden, hidden)

    def forward(self, s_B: Tensor) -> Tensor:
        waves = sinusoid(s_B.to(self.first.weight.dtype))
        return self.second(F.silu(self.first(waves)))


class Attention(nn.Module):
    """Self-attention with RMS-normalised, rotated queries and keys; bidirectional, or `causal`."""

    def __init__(self, hidden: int, heads: int, *, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = Linear(hidden, 3 * hidden)
        self.query_norm = RMSNorm(hidden // heads)
        self.key_norm = RMSNorm(hidden // heads)
        self.out = Linear(hidden, hidden)

    def forward(self, x_BSH: Tensor, rotation: Rotation, key_mask_BS: Tensor | None = None) -> Tensor:
        """`key_mask_BS` True = visible; None is the normal case and the fast one, and the only causal one."""
        q_BNSW, k_BNSW, v_BNSW = self.project(x_BSH, rotation)
        mask = None if key_mask_BS is None else key_mask_BS[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        y_BNSW = F.scaled_dot_product_attention(
            q_BNSW, k_BNSW, v_BNSW, attn_mask=mask, dropout_p=dropout, is_causal=self.causal
        )
        return self.merge(y_BNSW)

    def project(self, x_BSH: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, N, S, W) each, ready to be compared."""
        qkv = self.qkv(x_BSH).unflatten(-1, (3, self.heads, -1))
        q_BNSW, k_BNSW, v_BNSW = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q_BNSW = rotate(self.query_norm(q_BNSW), rotation)
        return q_BNSW, rotate(self.key_norm(k_BNSW), rotation), v_BNSW

    def merge(self, y_BNSW: Tensor) -> Tensor:
        """What the heads found, (B, S, H)."""
        y_BSH = self.out(y_BNSW.transpose(1, 2).flatten(-2))
        return F.dropout(y_BSH, self.dropout, self.training)


class _Gated(torch.autograd.Function):
    """silu(gate)·value of both in one tensor, which is all that is kept for the backward pass: silu is made again."""

    @staticmethod
    def forward(ctx: Any, gate_value: Tensor) -> Tensor:
        ctx.save_for_backward(gate_value)
        gate, value = gate_value.chunk(2, dim=-1)
        return F.silu(gate) * value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Tensor:
        (gate_value,), (gradient,) = ctx.saved_tensors, grad_outputs
        gate, value = gate_value.chunk(2, dim=-1)
        of_gate = torch.ops.aten.silu_backward(gradient * value, gate)
        return torch.cat([of_gate, gradient * F.silu(gate)], dim=-1)


def _gated(gate_value: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # the compiler chooses for itself what is kept
        gate, value = gate_value.chunk(2, dim=-1)
        return F.silu(gate) * value
    return cast("Tensor", _Gated.apply(gate_value))  # pyright: ignore[reportUnknownMemberType]


class SwiGLU(nn.Module):
    """silu(gate)·value, both from one Linear, then back to hidden."""

    def __init__(self, hidden: int, inner: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.gate_value = Linear(hidden, 2 * inner)
        self.out = Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.dropout(_gated(self.gate_value(x)), self.dropout, self.training))


class Block(nn.Module):
    """Pre-norm transformer block. With `modulated` (adaLN-Zero) a conditioning vector shifts, scales and
    gates both halves, and a fresh block is the identity."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        inner: int,
        *,
        dropout: float = 0.0,
        modulated: bool = False,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden)
        self.attention = Attention(hidden, heads, dropout=dropout, causal=causal)
        self.feed_norm = RMSNorm(hidden)
        self.feed = SwiGLU(hidden, inner, dropout=dropout)
        self.modulation = Linear(hidden, 6 * hidden) if modulated else None

    def forward(
        self,
        x_BSH: Tensor,
        rotation: Rotation,
        *,
        condition_BH: Tensor | None = None,
        key_mask_BS: Tensor | None = None,
    ) -> Tensor:
        if self.modulation is None or condition_BH is None:
            x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH), rotation, key_mask_BS)
            return x_BSH + self.feed(self.feed_norm(x_BSH))
        parts_B1H = self.modulation(F.silu(condition_BH))[:, None].chunk(6, dim=-1)
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = parts_B1H
        y_BSH = modulate(self.attention_norm(x_BSH), shift_a, scale_a)
        x_BSH = x_BSH + gate_a * self.attention(y_BSH, rotation, key_mask_BS)
        y_BSH = modulate(self.feed_norm(x_BSH), shift_f, scale_f)
        return x_BSH + gate_f * self.feed(y_BSH)


def modulate(x_BSH: Tensor, shift_B1H: Tensor, scale_B1H: Tensor) -> Tensor:
    return x_BSH * (1.0 + scale_B1H) + shift_B1H


def run_block(
    block: nn.Module,
    x_BSH: Tensor,
    rotation: Rotation,
    *,
    again: bool,
    drawing: bool,
    **given: Tensor | None,
) -> Tensor:
    """One block; with `again` only its input is kept for the backward pass, which computes the rest again: the same
    numbers from less memory. `drawing` says that it has dropout."""
    if not (again and torch.is_grad_enabled()):
        return block(x_BSH, rotation, **given)
    return checkpoint(  # pyright: ignore[reportUnknownVariableType]
        partial(block, **given), x_BSH, rotation, use_reentrant=False, preserve_rng_state=drawing
    )
