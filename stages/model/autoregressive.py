"""The autoregressive baseline: each token from those before it. Its loss is the exact NLL of a row.

The input is the network's special vector and then all tokens but the last, so that the first token has a probability
too, and position i is asked for token i. Sampling keeps what the blocks made of earlier positions (keys and values): a
new token costs one position.

Shapes: B batch, L positions, H hidden, N heads, S slots, W head width, T tokens of a text.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from elf.stages.model.choosing import choose_tokens
from elf.stages.model.layers import Block, Rotation
from elf.stages.model.likelihood import sum_nats
from elf.stages.model.network import full_precision
from elf.stages.model.objective import seeded
from elf.stages.model.rows import Loss, check_ids
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_draws import TokenDraws
from elf.stages.model.token_network import TokenNetwork


def next_token_loss(network: TokenNetwork, ids_BL: Tensor, counted_BL: Tensor, draws: TokenDraws) -> Loss:
    """Σ −log p(token | those before it) over the counted positions; conditions are seen and not counted."""
    check_ids(ids_BL, network.config.vocabulary)
    dropping = network.training and network.config.dropout > 0.0
    with seeded(draws.dropout_seed, ids_BL.device) if dropping else nullcontext():
        features_BLH = network(shifted(network, ids_BL))
    ones_B = features_BLH.new_ones(len(ids_BL))
    return sum_nats(
        network,
        features_BLH,
        ids_BL,
        counted_BL,
        weight_B=ones_B,
        counted_B=counted_BL.sum(dim=1),
        t_B=torch.zeros_like(ones_B),
    )


def shifted(network: TokenNetwork, ids_BL: Tensor) -> Tensor:
    """(B, L, H) what each position is given: the start, then the token before."""
    with full_precision(ids_BL):
        start_B1H = network.unknown.expand(len(ids_BL), -1, -1)
        return torch.cat([start_B1H, network.embed(ids_BL[:, :-1])], dim=1)


class _Past:
    """Keys and values of every block (B, N, S, W), as far as they are known."""

    def __init__(self, network: TokenNetwork, rows: int, slots: int) -> None:
        config = network.config
        self._shape = (2, config.depth, rows, config.heads, slots, config.head_width)
        self._kept: Tensor | None = None

    def add(self, depth: int, k_BNSW: Tensor, v_BNSW: Tensor, slot_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Put those of new slots in their places; all up to the last of them."""
        if self._kept is None:  # in the dtype that the blocks run in
            self._kept = v_BNSW.new_zeros(self._shape)
        rows_B1 = torch.arange(len(slot_BS), device=slot_BS.device)[:, None]
        for kept, new_BNSW in zip(self._kept[:, depth], (k_BNSW, v_BNSW), strict=True):
            kept[rows_B1, :, slot_BS] = new_BNSW.transpose(1, 2)
        last = int(slot_BS.max()) + 1
        keys_BNSW, values_BNSW = self._kept[:, depth, :, :, :last]
        return keys_BNSW, values_BNSW


@torch.no_grad()
def write(
    network: TokenNetwork,
    choice_BT: Tensor,
    config: TokenSamplerConfig,
    *,
    end_id: int,
    condition_BC: Tensor | None = None,
    condition_length_B: Tensor | None = None,
) -> Tensor:
    """(B, T) tokens, one after another, each row behind its own condition; `choice_BT` decides for each.

    Ends when all rows have an `end_id`, which then stands in all places that are left. A row does not depend on the
    others: slots of padded conditions are never looked at, and are written over.
    """
    rows, count = choice_BT.shape
    device = choice_BT.device
    start_B = torch.zeros(rows, dtype=torch.int64, device=device)
    given_BSH = network.unknown.expand(rows, -1, -1)
    if condition_BC is not None and condition_length_B is not None:
        start_B = condition_length_B.to(device)
        given_BSH = torch.cat([given_BSH, network.embed(condition_BC[:, : int(start_B.max())])], dim=1)
    if int(start_B.max()) + count > network.config.length:
        raise ValueError(
            f"{count} tokens behind a condition of {int(start_B.max())} do not fit into rows of "
            f"{network.config.length}: is the condition longer than its maximum?"
        )
    past = _Past(network, rows, int(start_B.max()) + count)
    slots_BS = torch.arange(given_BSH.shape[1], device=device).expand(rows, -1)
    features_BH = _extend(network, given_BSH, slots_BS, past)[torch.arange(rows), start_B]
    made_BT = torch.full((rows, count), end_id, dtype=torch.int64, device=device)
    ended_B = torch.zeros(rows, dtype=torch.bool, device=device)
    for place in range(count):
        ids_B = choose_tokens(network, features_BH, choice_BT[:, place], config)
        made_BT[:, place] = ids_B
        ended_B |= ids_B == end_id
        if place == count - 1 or bool(ended_B.all()):
            break
        slots_B1 = (start_B + place + 1)[:, None]
        features_BH = _extend(network, network.embed(ids_B[:, None]), slots_B1, past)[:, 0]
    return made_BT


def _extend(network: TokenNetwork, x_BSH: Tensor, slot_BS: Tensor, past: _Past) -> Tensor:
    """Features (B, S, H) of new slots, which see themselves and those before."""
    tables = network.rotation()
    rotation = Rotation(*(table[slot_BS][:, None] for table in tables))
    last = int(slot_BS.max()) + 1
    seen_B1SK = (torch.arange(last, device=slot_BS.device) <= slot_BS[:, :, None])[:, None]
    for depth, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        attention = block.attention
        q_BNSW, k_BNSW, v_BNSW = attention.project(block.attention_norm(x_BSH), rotation)
        keys_BNSW, values_BNSW = past.add(depth, k_BNSW, v_BNSW, slot_BS)
        y_BNSW = F.scaled_dot_product_attention(q_BNSW, keys_BNSW, values_BNSW, attn_mask=seen_B1SK)
        x_BSH = x_BSH + attention.merge(y_BNSW)
        x_BSH = x_BSH + block.feed(block.feed_norm(x_BSH))
    return network.finish(x_BSH)
