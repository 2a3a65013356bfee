"""The network: one trunk for denoising and decoding, a flow head and a decode head (paper, Section 3).

Shapes: B batch, L text positions, D encoder width, C input channels (D or 2D), H hidden, V vocabulary,
S = prefix + L, N chosen rows. Projections, prefix and heads run in float32 (the weights' dtype) even under
bf16 autocast; the blocks follow autocast.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elf.stages.model.config import ModelConfig
from elf.stages.model.layers import (
    EPSILON,
    Block,
    Linear,
    NumberEmbedder,
    RMSNorm,
    Rotation,
    modulate,
    rotary_tables,
    run_block,
)

TOKEN_STD = 0.02


class Hidden(NamedTuple):
    """Block output of the text positions before the final norm, and the adaLN vector where there is one."""

    h_BLH: Tensor
    condition_BH: Tensor | None

    def take(self, rows_N: Tensor) -> "Hidden":
        """The chosen rows only."""
        condition = None if self.condition_BH is None else self.condition_BH[rows_N]
        return Hidden(self.h_BLH[rows_N], condition)


class Trunk(nn.Module):
    """Input projections, conditioning and blocks.

    With `checkpointing` set, of a block only the input is kept for the backward pass, which computes the rest again:
    the same numbers from less memory.
    """

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        width, hidden = config.width, config.hidden
        self.self_condition = Linear(2 * width, width)
        self.input_down = None if config.bottleneck is None else Linear(width, config.bottleneck, bias=False)
        self.input_up = Linear(config.bottleneck or width, hidden)
        adaln = config.conditioning == "adaln"
        self.time_embedder = NumberEmbedder(hidden)
        self.time_tokens = None if adaln else _tokens(config.time_tokens, hidden)
        self.guidance_embedder = NumberEmbedder(hidden) if config.guided else None
        self.guidance_tokens = (
            _tokens(config.guidance_tokens, hidden) if config.guided and not adaln else None
        )
        modes = min(config.mode_tokens, 1) if adaln else config.mode_tokens
        self.mode_tokens = _tokens(modes, hidden) if modes else None
        quarter = config.depth // 4
        self.blocks = nn.ModuleList(
            Block(
                hidden,
                config.heads,
                config.feed_width,
                dropout=config.dropout if quarter <= i < 3 * quarter else 0.0,
                modulated=adaln,
            )
            for i in range(config.depth)
        )
        # Kept in float64 and cast where used, so that a network made double is double throughout.
        tables = rotary_tables(config.length, config.head_width, prefix=config.prefix)
        self.register_buffer("rotary_cos", tables.cos_SW, persistent=False)
        self.register_buffer("rotary_sin", tables.sin_SW, persistent=False)

    def forward(
        self,
        z_BLC: Tensor,
        t_B: Tensor,
        *,
        guidance_B: Tensor | None = None,
        mode_B: Tensor | None = None,
        key_mask_BL: Tensor | None = None,
    ) -> Hidden:
        with full_precision(z_BLC):
            x_BLH = self.project(z_BLC)
            embedded = self.embed(t_B, guidance_B)
            gate_B = torch.zeros_like(t_B) if mode_B is None else mode_B
            condition_BH = self.condition_vector(embedded, gate_B) if self.time_tokens is None else None
            prefix_BPH = self.prefix_tokens(embedded, gate_B)
            x_BSH = torch.cat([*prefix_BPH, x_BLH], dim=1)
        prefix = x_BSH.shape[1] - z_BLC.shape[1]
        if key_mask_BL is not None:
            key_mask_BL = F.pad(key_mask_BL.bool(), (prefix, 0), value=True)
        rotation = self.rotation(z_BLC.shape[1])
        for block in self.blocks:
            x_BSH = run_block(
                block,
                x_BSH,
                rotation,
                again=self.checkpointing,
                drawing=self.config.dropout > 0.0,
                condition_BH=condition_BH,
                key_mask_BS=key_mask_BL,
            )
        return Hidden(x_BSH[:, prefix:], condition_BH)

    def project(self, z_BLC: Tensor) -> Tensor:
        """(B, L, D), or (B, L, 2D) = [state ; self-condition], to hidden."""
        width, given = self.config.width, z_BLC.shape[-1]
        if given not in (width, 2 * width):
            raise ValueError(
                f"the network's input has {given} channels; it must have {width} (the state) "
                f"or {2 * width} (the state and the self-condition half)"
            )
        x = z_BLC.to(self.input_up.weight.dtype)
        if given == 2 * width:
            x = self.self_condition(x)
        return self.input_up(x if self.input_down is None else self.input_down(x))

    def embed(self, t_B: Tensor, guidance_B: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The hidden vectors of time and guidance."""
        if (guidance_B is None) != (self.guidance_embedder is None):
            have, need = ("no", "needs one") if guidance_B is None else ("a", "takes none")
            raise ValueError(
                f"the network was given {have} guidance scale, but with {self.config.guidance_tokens} "
                f"guidance tokens it {need}"
            )
        if guidance_B is None or self.guidance_embedder is None:
            return self.time_embedder(t_B), None
        return self.time_embedder(t_B), self.guidance_embedder(guidance_B)

    def prefix_tokens(self, embedded: tuple[Tensor, Tensor | None], gate_B: Tensor) -> list[Tensor]:
        """Time, guidance and mode tokens, (B, n, H) each; none under adaLN."""
        if self.time_tokens is None:
            return []
        time_BH, guidance_BH = embedded
        parts = [self.time_tokens + time_BH[:, None]]
        if guidance_BH is not None and self.guidance_tokens is not None:
            parts.append(self.guidance_tokens + guidance_BH[:, None])
        if self.mode_tokens is not None:
            parts.append(self.mode_tokens * gate_B.to(self.mode_tokens.dtype)[:, None, None])
        return parts

    def condition_vector(self, embedded: tuple[Tensor, Tensor | None], gate_B: Tensor) -> Tensor:
        """adaLN: the sum of what the prefix would have said."""
        vector_BH, guidance_BH = embedded
        if guidance_BH is not None:
            vector_BH = vector_BH + guidance_BH
        if self.mode_tokens is not None:
            vector_BH = vector_BH + self.mode_tokens[:, 0] * gate_B.to(self.mode_tokens.dtype)[:, None]
        return vector_BH

    def rotation(self, length: int) -> Rotation:
        """Tables for this length, in the weights' dtype."""
        tables, like, config = Rotation(self.rotary_cos, self.rotary_sin), self.input_up.weight, self.config
        if length != config.length:
            tables = rotary_tables(length, config.head_width, prefix=config.prefix, trained=config.length)
        return Rotation(tables.cos_SW.to(like), tables.sin_SW.to(like))


class Network(nn.Module):
    """`network(z, t, …)` runs the trunk; `flow` and `logits` are then called on the rows that need them.

    A fresh network is all zeros: use `build`, or load a checkpoint.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = Trunk(config)
        self.decode_trunk = Trunk(config) if config.decoder == "separate" else None
        self.flow_norm = RMSNorm(config.hidden)
        adaln = config.conditioning == "adaln"
        self.flow_modulation = Linear(config.hidden, 2 * config.hidden) if adaln else None
        self.flow_head = Linear(config.hidden, config.width)
        self.decode_projection = Linear(config.hidden, config.width)
        self.decode_vocabulary = Linear(config.width, config.vocabulary)
        # 3-D, so that Muon leaves it to Adam: a step touches few of its rows.
        table = torch.zeros(1, config.vocabulary, config.width) if config.table else None
        self.table = None if table is None else nn.Parameter(table)

    def embed(self, ids_BL: Tensor) -> Tensor:
        """(B, L, D) clean latents: rows of the table, at unit size so that nothing is won by shrinking them."""
        if self.table is None:
            raise ValueError(
                f"the network has table {self.config.table}, so there is no embedding of ids; give it latents"
            )
        with full_precision(self.table):
            rows_BLD = F.embedding(ids_BL, self.table.squeeze(0))
            return F.rms_norm(rows_BLD, rows_BLD.shape[-1:], eps=EPSILON)

    @property
    def trunks(self) -> list[Trunk]:
        """One, or two with a decoder of its own."""
        return [self.trunk] if self.decode_trunk is None else [self.trunk, self.decode_trunk]

    def forward(
        self,
        z_BLC: Tensor,
        t_B: Tensor,
        *,
        guidance_B: Tensor | None = None,
        mode_B: Tensor | None = None,
        key_mask_BL: Tensor | None = None,
    ) -> Hidden:
        """Block output (B, L, H) for the state (B, L, D) or [state ; self-condition half] (B, L, 2D).

        mode_B: gate of the mode tokens per row, 1 on decode rows; None is 0 everywhere. guidance_B: required
        by a guided network, refused by any other. key_mask_BL: optional, False hides a position as a key.
        """
        if self.decode_trunk is None or mode_B is None:
            return self.trunk(z_BLC, t_B, guidance_B=guidance_B, mode_B=mode_B, key_mask_BL=key_mask_BL)
        rows = mode_B > 0
        parts: list[Hidden] = []
        order = torch.cat([(~rows).nonzero()[:, 0], rows.nonzero()[:, 0]])
        for trunk, chosen in ((self.trunk, ~rows), (self.decode_trunk, rows)):
            guidance = None if guidance_B is None else guidance_B[chosen]
            keys = None if key_mask_BL is None else key_mask_BL[chosen]
            if bool(chosen.any()):
                parts.append(
                    trunk(
                        z_BLC[chosen],
                        t_B[chosen],
                        guidance_B=guidance,
                        mode_B=mode_B[chosen],
                        key_mask_BL=keys,
                    )
                )
        conditions = [part.condition_BH for part in parts if part.condition_BH is not None]
        joined = Hidden(
            torch.cat([part.h_BLH for part in parts]), torch.cat(conditions) if conditions else None
        )
        return joined.take(order.argsort())

    def flow(self, hidden: Hidden) -> Tensor:
        """What the network predicts (x̂, v or ε by `config.prediction`), (B, L, D)."""
        with full_precision(hidden.h_BLH):
            y_BLH = self.flow_norm(hidden.h_BLH.to(self.flow_head.weight.dtype))
            if self.flow_modulation is not None and hidden.condition_BH is not None:
                shift, scale = self.flow_modulation(F.silu(hidden.condition_BH))[:, None].chunk(2, dim=-1)
                y_BLH = modulate(y_BLH, shift, scale)
            return self.flow_head(y_BLH)

    def decode_features(self, h: Tensor) -> Tensor:
        """What the vocabulary matrix is applied to: (…, H) → (…, D)."""
        with full_precision(h):
            return F.gelu(self.decode_projection(h.to(self.flow_head.weight.dtype)), approximate="tanh")

    def logits(self, h: Tensor) -> Tensor:
        """(…, H) → (…, V). Whoever has many positions calls it in chunks."""
        with full_precision(h):
            return self.decode_vocabulary(self.decode_features(h))


def full_precision(x: Tensor) -> torch.autocast:
    """Autocast switched off for the device of x."""
    return torch.autocast(x.device.type, enabled=False)


def _tokens(count: int, hidden: int) -> nn.Parameter:
    # 3-D, so that Muon, which takes matrices, leaves them to Adam.
    return nn.Parameter(torch.zeros(1, count, hidden))


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@torch.no_grad()
def initialise(network: Network, generator: torch.Generator) -> None:
    """Fill every parameter from the generator (a CPU one), in the order of the names.

    Linear weights Xavier-uniform, biases 0, norms 1; embedders and learned tokens N(0, 0.02²), a table N(0, 1); the
    flow head and the adaLN modulations 0, so that x̂ starts at 0.
    """
    for name, parameter in network.named_parameters():
        draw = torch.empty(parameter.shape)
        if name.endswith("bias") or "flow_head" in name or "modulation" in name:
            draw.zero_()
        elif name.endswith("norm.weight"):
            draw.fill_(1.0)
        elif name == "table":
            draw.normal_(0.0, 1.0, generator=generator)
        elif "_embedder." in name or name.endswith("_tokens"):
            draw.normal_(0.0, TOKEN_STD, generator=generator)
        else:
            nn.init.xavier_uniform_(draw, generator=generator)
        parameter.copy_(draw)


def build(config: ModelConfig, generator: torch.Generator) -> Network:
    """A freshly initialised network on the CPU."""
    network = Network(config)
    initialise(network, generator)
    return network
