"""From clean latents to token ids: one more call of the network, in decode mode; then the end-of-text rule.

Shapes: B batch, L positions, D width, N positions kept.
"""

import torch
from torch import Tensor

from elf.stages.model.config import SamplerConfig
from elf.stages.model.cross_entropy import arg_max
from elf.stages.model.network import Network
from elf.stages.model.sampler import guidance_rows


@torch.no_grad()
def decode(
    network: Network,
    z_BLD: Tensor,
    config: SamplerConfig,
    *,
    start_B: Tensor | None = None,
    count: int | None = None,
) -> Tensor:
    """(B, N) most probable ids: time 1, mode gate 1, the self-condition half all zero, the condition left clean in z.

    `start_B` and `count` choose each row's positions start … start + count − 1, the only ones whose logits are made:
    for conditional samples the row's condition length and L − the longest condition allowed. Default: all L.
    """
    length = z_BLD.shape[1]
    count = length if count is None else count
    ones_B = z_BLD.new_ones(len(z_BLD))
    given = torch.cat([z_BLD, torch.zeros_like(z_BLD)], dim=-1) if config.self_condition else z_BLD
    hidden = network(given, ones_B, guidance_B=guidance_rows(network, config, ones_B), mode_B=ones_B)
    position_BN = torch.arange(count, device=z_BLD.device).expand(len(z_BLD), -1)
    if start_B is not None:
        position_BN = position_BN + start_B.to(z_BLD.device)[:, None]
    if int(position_BN.max()) >= length:
        raise ValueError(
            f"positions up to {int(position_BN.max())} asked of rows {length} long; "
            "start + count must stay within the row: is a condition longer than its maximum?"
        )
    h_BNH = hidden.h_BLH.gather(1, position_BN[:, :, None].expand(-1, -1, hidden.h_BLH.shape[2]))
    head = network.decode_vocabulary
    return arg_max(network.decode_features(h_BNH).flatten(0, 1), head.weight, head.bias).view(
        len(z_BLD), count
    )


def cut_after_end(ids_BL: Tensor, end_id: int, pad_id: int) -> Tensor:
    """Everything from a row's first end mark on, the mark included, becomes padding."""
    ended_BL = (ids_BL == end_id).cumsum(dim=1) > 0
    return ids_BL.masked_fill(ended_BL, pad_id)


def shift_left(values_BL: Tensor, shift_B: Tensor, pad: float) -> Tensor:
    """Move every row left by its own shift and fill with `pad`; axes after the second move along. (B, L, …)."""
    length = values_BL.shape[1]
    source_BL = torch.arange(length, device=values_BL.device)[None] + shift_B.to(values_BL.device)[:, None]
    rows_B1 = torch.arange(len(values_BL), device=values_BL.device)[:, None]
    moved = values_BL[rows_B1, source_BL.clamp(max=length - 1)]
    outside_BL = source_BL >= length
    return moved.masked_fill(outside_BL.reshape(outside_BL.shape + (1,) * (values_BL.dim() - 2)), pad)
