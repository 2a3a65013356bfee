"""The network of the baselines: the flow's blocks between token ids and the probabilities of token ids.

One table of tokens serves both ends: its rows, times √H, are what goes in, and what comes out is multiplied with them
(tied; Press & Wolf 2017). So of equal depth and width it has about as many parameters as a flow, which has an output
matrix and no table: a frozen encoder has the flow's. Like the flow's decode head it has GELU-tanh(Linear) before the
vocabulary; without, a fresh network would answer with the token it is given. Beside the table stands one learned vector
that is no token: what an autoregressive model begins with, or what stands where a masked one does not know the token.

The table is stored as (1, V, H), 3-D, so that Muon, which takes matrices, leaves it to Adam: a step touches few of its
rows. Table and head run in float32 even under bf16 autocast; the blocks follow autocast.
Shapes: B batch, L positions, H hidden, V vocabulary, N chosen positions.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elf.stages.model.layers import Block, Linear, RMSNorm, Rotation, rotary_tables, run_block
from elf.stages.model.network import full_precision
from elf.stages.model.token_config import TokenConfig


class TokenNetwork(nn.Module):
    """`network(network.embed(ids))` gives features, of which `network.weight` and `bias` make logits.

    A fresh network is all zeros: use `build_tokens`, or load a checkpoint. With `checkpointing` set, blocks are
    computed again in the backward pass.
    """

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(self, config: TokenConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.table = nn.Parameter(torch.zeros(1, config.vocabulary, config.hidden))
        self.special = nn.Parameter(torch.zeros(1, 1, config.hidden))
        quarter = config.depth // 4
        self.blocks = nn.ModuleList(
            Block(
                config.hidden,
                config.heads,
                config.feed_width,
                dropout=config.dropout if quarter <= i < 3 * quarter else 0.0,
                causal=config.causal,
            )
            for i in range(config.depth)
        )
        self.norm = RMSNorm(config.hidden)
        self.projection = Linear(config.hidden, config.hidden)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        # Kept in float64 and cast where used, so that a network made double is double throughout.
        tables = rotary_tables(config.length, config.head_width)
        self.register_buffer("rotary_cos", tables.cos_SW, persistent=False)
        self.register_buffer("rotary_sin", tables.sin_SW, persistent=False)

    @property
    def trunks(self) -> "list[TokenNetwork]":
        """What has blocks: itself."""
        return [self]

    @property
    def weight(self) -> Tensor:
        """(V, H): the table as the head takes it."""
        return self.table.squeeze(0)

    def embed(self, ids: Tensor) -> Tensor:
        """(…,) ids → (…, H)."""
        return F.embedding(ids, self.weight) * math.sqrt(self.config.hidden)

    @property
    def unknown(self) -> Tensor:
        """(1, 1, H): the vector that is no token, as the blocks take it."""
        return self.special * math.sqrt(self.config.hidden)

    def forward(self, x_BLH: Tensor) -> Tensor:
        """Features (B, L, H) of embedded tokens, in the weights' dtype."""
        rotation = self.rotation()
        if x_BLH.shape[1] != self.config.length:
            rotation = Rotation(*(table[: x_BLH.shape[1]] for table in rotation))
        for block in self.blocks:
            x_BLH = run_block(
                block, x_BLH, rotation, again=self.checkpointing, drawing=self.config.dropout > 0.0
            )
        return self.finish(x_BLH)

    def finish(self, x_BLH: Tensor) -> Tensor:
        """What the table is multiplied with, from the last block's output."""
        with full_precision(x_BLH):
            return F.gelu(self.projection(self.norm(x_BLH.to(self.bias.dtype))), approximate="tanh")

    def rotation(self) -> Rotation:
        """Tables of all positions, in the weights' dtype."""
        return Rotation(self.rotary_cos.to(self.bias), self.rotary_sin.to(self.bias))

    def logits(self, features: Tensor) -> Tensor:
        """(…, H) → (…, V). Whoever has many positions calls it in chunks."""
        with full_precision(features):
            return features @ self.weight.T + self.bias


@torch.no_grad()
def build_tokens(config: TokenConfig, generator: torch.Generator) -> TokenNetwork:
    """A freshly initialised network on the CPU, filled from the generator (a CPU one) in the order of the names.

    Linear weights Xavier-uniform, biases 0, norms 1; table and special vector N(0, 1/H), so that what goes into the
    blocks has unit size.
    """
    network = TokenNetwork(config)
    for name, parameter in network.named_parameters():
        draw = torch.empty(parameter.shape)
        if name in ("table", "special"):
            draw.normal_(0.0, config.hidden**-0.5, generator=generator)
        elif name.endswith("bias"):
            draw.zero_()
        elif name.endswith("norm.weight"):
            draw.fill_(1.0)
        else:
            nn.init.xavier_uniform_(draw, generator=generator)
        parameter.copy_(draw)
    return network
